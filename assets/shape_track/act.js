// The shape track: what a person does, by pointer and by keyboard.

function pressed(view, card, event) {
  const index = elementAt(card, event.offsetX, event.offsetY);
  if (index) choose(view, card.tensor, index);
  else goTo(view, card.tensor.key);
}

function pointed(view, card, event) {
  const index = elementAt(card, event.offsetX, event.offsetY);
  const { canvas, tensor } = card;
  canvas.style.cursor = index ? "pointer" : "default";
  canvas.title = index ? `${inWords(tensor, single(tensor, index))} = ${valueAt(view, { key: tensor.key, index })}` : "";
}

function choose(view, tensor, index) {
  view.pick = { key: tensor.key, index };
  // The walk follows the letter of what was chosen.
  if (view.scene.letters.includes(tensor.symbol) && tensor.symbol !== view.letter) setLetter(view, tensor.symbol);
  relight(view);
  show(view);
  remember(view);
  say(view, `${inWords(tensor, single(tensor, index))} is ${valueAt(view, view.pick)}. ${view.story}`);
}

function relight(view) {
  view.lit = litBy(view.scene, view.pick.key, view.pick.index);
  view.story = storyOf(view.scene, view.pick.key, view.pick.index);
}

function goTo(view, key) {
  if (view.guess) endGuess(view);
  view.step = key;
  show(view);
  bringIntoView(view);
  remember(view);
  const tensor = here(view);
  say(view, `Step ${tensor.number}, ${tensor.name}. ${tensor.sentence} Shape ${shapeText(tensor.shape)}.`);
}

function stepBy(view, by) {
  const path = pathOf(view);
  const at = path.findIndex((tensor) => tensor.key === view.step) + by;
  goTo(view, path[at >= path.length ? 0 : Math.max(0, at)].key);
}

function setLetter(view, letter) {
  const [mark, symbol] = view.step.split(".");
  const sibling = `${mark}.${letter}`;
  if (symbol === view.letter && view.scene.byKey.has(sibling) && ["1", "2", "3", "3½"].includes(mark)) view.step = sibling;
  view.letter = letter;
  settle(view);
  buildCards(view);
}

/** Q, K or V: the walk and, where it has a twin there, the chosen element change over. */
function chooseLetter(view, letter) {
  const [mark, symbol] = view.pick.key.split(".");
  const twin = view.scene.byKey.get(`${mark}.${letter}`);
  if (view.scene.letters.includes(symbol) && twin && ["1", "2", "3", "3½"].includes(mark)) view.pick.key = twin.key;
  else if (view.scene.letters.includes(symbol)) view.pick.key = `3.${letter}`;
  setLetter(view, letter);
  relight(view);
  show(view);
  bringIntoView(view);
  remember(view);
  say(view, `Walking with ${letter}. ${view.story}`);
}

function chooseFlavour(view, flavour) {
  view.flavour = flavour;
  buildCode(view);
  show(view);
  remember(view);
}

function lightAxis(view, axis) {
  if (view.axis === axis) return;
  view.axis = axis;
  for (const node of view.dom.root.querySelectorAll("[data-axis]")) {
    node.toggleAttribute("data-lit", lights(view, node.dataset.axis));
  }
  view.dom.root.dataset.axis = axis ?? "";
  view.cards.forEach((card) => paint(view, card));
}

function togglePlay(view) {
  if (view.timer) {
    stopPlaying(view);
    return;
  }
  const path = pathOf(view);
  if (view.step === path.at(-1).key) goTo(view, path[0].key);
  view.timer = setInterval(() => {
    stepBy(view, 1);
    if (view.step === pathOf(view).at(-1).key) stopPlaying(view);
  }, PLAY_MS);
  show(view);
}

function stopPlaying(view) {
  clearInterval(view.timer);
  view.timer = 0;
  show(view);
}

function breakIt(view) {
  view.ask?.("ask", { action: "break" });
  const below = document.querySelector(".st-key-s_more");
  if (below) onceIn(below, ".hs-verdict", () => bringUp(below));
}

/** Runs at once or as soon as the server's answer stands there: before that the page may be too short to scroll. */
function onceIn(box, selector, run) {
  if (box.querySelector(selector)) return run();
  const watch = new MutationObserver(() => {
    if (!box.querySelector(selector)) return;
    watch.disconnect();
    run();
  });
  watch.observe(box, { childList: true, subtree: true });
}

/** At once, and again while it still grows: a smooth scroll ends where the page moves under it. */
function bringUp(node) {
  const growing = new ResizeObserver(() => node.scrollIntoView({ block: "start", behavior: "instant" }));
  const settled = () => growing.disconnect();
  growing.observe(node); // also calls it once
  setTimeout(settled, SETTLES_MS);
  for (const theirs of ["wheel", "touchmove", "keydown"]) window.addEventListener(theirs, settled, { once: true });
}

function say(view, words) {
  view.dom.spoken.textContent = words;
}

/** Where the track scrolls, the block stood at comes into view; on a phone it fills the screen. */
function bringIntoView(view) {
  const { track, root } = view.dom;
  const card = view.cards.find((one) => one.tensor.key === view.step);
  if (root.dataset.size === "wide" || !card) return;
  const aside = root.dataset.size === "phone" ? 0 : (track.clientWidth - card.node.offsetWidth) / 2;
  track.scrollTo({ left: card.node.offsetLeft - track.offsetLeft - aside });
}

function swiped(view) {
  const { track, root } = view.dom;
  if (root.dataset.size !== "phone" || !view.scene || view.guess) return;
  const middle = track.scrollLeft + track.clientWidth / 2;
  const card = view.cards.find(({ node }) => {
    const left = node.offsetLeft - track.offsetLeft;
    return left <= middle && middle < left + node.offsetWidth;
  });
  if (card && card.mark !== here(view).number) goTo(view, shownIn(view, card).key);
}

// ---------------------------------------------------------------------------------------------------------------
// Keyboard

function onKey(view, event) {
  if (!view.scene || event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.composedPath()[0];
  if (event.key === "Escape") {
    if (view.guess) endGuess(view);
    else if (view.timer) stopPlaying(view);
    return;
  }
  if (target.matches("input") || (target === view.dom.lines && event.key !== "ArrowLeft" && event.key !== "ArrowRight")) return;
  const moves = { ArrowUp: [-2, -1], ArrowDown: [-2, 1], PageUp: [-3, -1], PageDown: [-3, 1] };
  const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.shiftKey && sideways) movePick(view, -1, sideways);
  else if (sideways) stepBy(view, sideways);
  else if (event.key === "Home") goTo(view, pathOf(view)[0].key);
  else if (event.key === "End") goTo(view, pathOf(view).at(-1).key);
  else if (moves[event.key]) movePick(view, ...moves[event.key]);
  else return;
  event.preventDefault();
}

/** Moves the chosen element along the axis of its block's rows (-2), columns (-1) or heads (-3). */
function movePick(view, axis, by) {
  const tensor = view.scene.byKey.get(view.pick.key);
  const pieces = kindOf(tensor) === "pieces"; // (seq, head, d_head): rows are the first axis, heads the second
  const at = tensor.shape.length + (pieces && axis < -1 ? (axis === -2 ? -3 : -2) : axis);
  if (at < 0) return;
  const index = [...view.pick.index];
  index[at] = clamp(index[at] + by, 0, tensor.shape[at] - 1);
  choose(view, tensor, index);
}
