// The shape track: the seven steps of attention as blocks drawn to their shape, one element lit in all of them.
//
// One Streamlit Components-v2 component. It draws one binary message (its layout: attention/plots/shape_track.py)
// and keeps its own state on parentElement, so that stepping, choosing an element, the letter or the code's dialect,
// playing and predicting cost no rerun.
//
// Upwards goes only the trigger "ask" {action: "break"}.
//
// Keyboard, anywhere in the track: left/right = step, Home/End = first/last step, up/down = the chosen element's row,
// shift+left/right = its column, Page Up/Down = its head, Esc = stop playing or predicting.

const NAME = "shape track";
const MAGIC = "HST1";
const OWN = "s.";
const MEMORY = "__headscope_shapes";
const STORE = "headscope.shapes";
const SETTLES_MS = 2000; // what comes late in an opened part
const PLAY_MS = 1900;
const MOST_LAYERS = 5; // further heads are counted in words
const FLAVOURS = { numpy: "NumPy", torch: "PyTorch", einops: "einops" };
const AXIS_WORDS = { seq: "token", kv_head: "KV head", d_head: "dim", d_head_v: "dim", d_model: "column" };
// One name for axes that count the same things, so that hovering one lights the others.
const SAME_AXIS = { query: "seq", key: "seq", kv_head: "head", d_head_v: "d_head" };
const AXIS_IN_PROSE = /(kv_head|d_head|d_model|\bseq\b|\btokens?\b|\bheads?\b|\bquery\b|\bqueries\b|\bkeys?\b)/giu;

/**
 * Draws, or redraws, the track in component.parentElement; returns the clean-up.
 * @param {{data: Uint8Array, parentElement: Element, setTriggerValue?: Function}} component
 */
export default function shapeTrack(component) {
  const host = component.parentElement;
  const view = host[MEMORY] ?? mount(host, atFirst());
  view.ask = component.setTriggerValue ?? null;
  receive(view, component.data, refresh);
  return () => takeDown(view);
}

// ---------------------------------------------------------------------------------------------------------------
// Life of the view

function atFirst() {
  return {
    message: null, // the bytes drawn
    scene: null, // the decoded message
    step: null, // key of the tensor the page stands at
    letter: "K",
    pick: null, // {key, index}: the chosen element
    flavour: "numpy",
    axis: null, // the axis that lights up
    lit: new Map(), // key -> mask of what the chosen element came from and reaches
    guess: null, // {target, tries, said}: a prediction under way
    timer: 0, // playing
    cards: [],
  };
}

/** Takes a new run in place: the step, the letter and the element stay where they still make sense. */
function adopt(view, scene) {
  const first = view.scene === null;
  view.scene = scene;
  view.guess = null;
  if (first) {
    Object.assign(view, { step: scene.start.step, letter: scene.start.letter, pick: pickOf(scene.start.pick) });
    if (canRemember()) {
      const asked = parametersOf(window.location.search);
      recall(view, asked.size ? asked : storedParameters());
    }
  }
  settle(view);
  view.dom.problem.hidden = true;
  view.dom.body.hidden = false;
  rebuild(view);
}

/** Puts step and element back into what this run has. */
function settle(view) {
  const { scene } = view;
  const path = pathOf(view);
  if (!path.some((tensor) => tensor.key === view.step)) {
    const number = (view.step ?? "").split(".")[0];
    view.step = (path.findLast((tensor) => tensor.number === number) ?? path[0]).key;
  }
  const tensor = scene.byKey.get(view.pick?.key);
  if (!tensor || tensor.at === undefined || tensor.shape.length !== view.pick.index.length) {
    view.pick = pickOf(scene.start.pick);
  }
  const { shape } = scene.byKey.get(view.pick.key);
  view.pick.index = view.pick.index.map((place, axis) => clamp(place, 0, shape[axis] - 1));
}

function listen(view) {
  const { root, track } = view.dom;
  watchWindow(view, [root], { resized: refresh, recalled: redraw });
  listenTo(view, root, "keydown", (event) => onKey(view, event));
  listenTo(view, track, "scroll", () => {
    clearTimeout(view.swipe);
    view.swipe = setTimeout(() => swiped(view), 140);
  });
  view.stops.push(() => clearInterval(view.timer), () => clearTimeout(view.swipe));
}

/** Draws a recalled state. */
function redraw(view) {
  settle(view);
  rebuild(view);
}

function rebuild(view) {
  buildCards(view);
  buildCode(view);
  relight(view);
  refresh(view);
}

// ---------------------------------------------------------------------------------------------------------------
// Message -> scene

function decode(bytes) {
  const [scene, start] = openMessage(bytes, 4);
  // A Float32Array needs an aligned start, which a message inside a larger buffer may not have.
  const body = bytes.slice(start).buffer;
  for (const tensor of scene.tensors) {
    tensor.values = new Float32Array(body, tensor.at, size(tensor.shape));
  }
  scene.byKey = new Map([...scene.inputs, ...scene.tensors].map((tensor) => [tensor.key, tensor]));
  return scene;
}

function size(shape) {
  return shape.reduce((product, length) => product * length, 1);
}

/** The tensors one walks through for the chosen letter, in order. */
function pathOf(view) {
  const own = (tensor) => !["1", "2", "3", "3½"].includes(tensor.number) || tensor.symbol === view.letter;
  return view.scene.tensors.filter(own);
}

function here(view) {
  return view.scene.byKey.get(view.step);
}

// ---------------------------------------------------------------------------------------------------------------
// Where an element comes from and goes: the engine's rules, read in both directions

function unravel(flat, shape) {
  const index = new Array(shape.length);
  for (let axis = shape.length - 1; axis >= 0; axis -= 1) {
    index[axis] = flat % shape[axis];
    flat = Math.floor(flat / shape[axis]);
  }
  return index;
}

function ravel(index, shape) {
  return index.reduce((flat, place, axis) => flat * shape[axis] + place, 0);
}

function everyIndex(choices, visit, index = [], axis = 0) {
  if (axis === choices.length) {
    visit(index);
    return;
  }
  for (const place of choices[axis]) {
    index[axis] = place;
    everyIndex(choices, visit, index, axis + 1);
  }
}

function upTo(length) {
  return Array.from({ length }, (_, place) => place);
}

/** Calls `visit` with one index per distinct setting of the axes that matter among the chosen elements. */
function eachDistinct(mask, shape, axes, visit) {
  const seen = new Set();
  for (let flat = 0; flat < mask.length; flat += 1) {
    if (!mask[flat]) continue;
    const index = unravel(flat, shape);
    const mark = axes.reduce((sum, axis) => sum * shape[axis] + index[axis], 0);
    if (seen.has(mark)) continue;
    seen.add(mark);
    visit(index);
  }
}

/** Which elements of a source the chosen elements of the new tensor depend on. */
function sourcesOf(scene, link, target, chosen) {
  const [key, rules, gate] = link;
  const source = scene.byKey.get(key);
  const found = new Uint8Array(size(source.shape));
  const gated = scene.causal && gate;
  if (gated === "row") return softmaxRows(chosen, source.shape, true);
  if (gated === "values") return throughValues(chosen, source.shape, true);
  const open = gated === "element" ? chosen.map((lit, flat) => lit && isOpen(unravel(flat, target.shape))) : chosen;
  const used = [...new Set(rules.flatMap(([kind, a, b]) => (kind === "all" ? [] : kind === "merge" ? [a, b] : [a])))];
  eachDistinct(open, target.shape, used, (index) => {
    const choices = rules.map(([kind, a, b, width], axis) => {
      if (kind === "all") return upTo(source.shape[axis]);
      if (kind === "same") return [source.shape[axis] === 1 ? 0 : index[a]];
      if (kind === "merge") return [index[a] * width + index[b]];
      if (kind === "high") return [Math.floor(index[a] / width)];
      if (kind === "low") return [index[a] % width];
      return [index[a], (index[a] + width) % (2 * width)];
    });
    everyIndex(choices, (place) => { found[ravel(place, source.shape)] = 1; });
  });
  return found;
}

/** Which elements of the new tensor the chosen source elements reach. */
function targetsOf(scene, link, target, chosen) {
  const [key, rules, gate] = link;
  const source = scene.byKey.get(key);
  const gated = scene.causal && gate;
  if (gated === "row") return softmaxRows(chosen, source.shape, false);
  if (gated === "values") return throughValues(chosen, source.shape, false);
  const reached = new Uint8Array(size(target.shape));
  const used = rules.flatMap(([kind], axis) => (kind === "all" ? [] : [axis]));
  eachDistinct(chosen, source.shape, used, (index) => {
    const choices = target.shape.map(upTo);
    rules.forEach(([kind, a, b, width], axis) => {
      const at = index[axis];
      if (kind === "same" && source.shape[axis] > 1) choices[a] = [at];
      if (kind === "merge") {
        choices[a] = [Math.floor(at / width)];
        choices[b] = [at % width];
      }
      if (kind === "pair") choices[a] = [at, (at + width) % (2 * width)];
      if (kind === "high") {
        const low = rules.findIndex(([other, axisOfOther]) => other === "low" && axisOfOther === a);
        choices[a] = low < 0 ? upTo(width).map((copy) => at * width + copy) : [at * width + index[low]];
      }
    });
    everyIndex(choices, (place) => { reached[ravel(place, target.shape)] = 1; });
  });
  if (gated === "element") {
    for (let flat = 0; flat < reached.length; flat += 1) reached[flat] &= isOpen(unravel(flat, target.shape)) ? 1 : 0;
  }
  return reached;
}

/** Causal: a query looks at keys up to itself. */
function isOpen(index) {
  return index.at(-1) <= index.at(-2);
}

/** Softmax under a mask: an open weight depends on its row's open scores' whole row, a blocked one only on itself. */
function softmaxRows(chosen, shape, backwards) {
  const keys = shape.at(-1);
  const queries = shape.at(-2);
  const found = new Uint8Array(chosen.length);
  for (let row = 0; row < chosen.length / keys; row += 1) {
    const query = row % queries;
    let any = false;
    for (let key = 0; key < keys; key += 1) any ||= Boolean(chosen[row * keys + key]) && (!backwards || key <= query);
    for (let key = 0; key < keys; key += 1) {
      const open = key <= query;
      const alone = chosen[row * keys + key] && !open;
      found[row * keys + key] = alone || (any && (backwards || open)) ? 1 : 0;
    }
  }
  return found;
}

/** Values under a causal mask: a key's value reaches the queries from it on. */
function throughValues(chosen, shape, backwards) {
  const width = shape.at(-1);
  const tokens = shape.at(-2);
  const found = new Uint8Array(chosen.length);
  for (let head = 0; head < chosen.length / (tokens * width); head += 1) {
    for (let dim = 0; dim < width; dim += 1) {
      let any = false;
      for (let turn = 0; turn < tokens; turn += 1) {
        const token = backwards ? tokens - 1 - turn : turn;
        const flat = (head * tokens + token) * width + dim;
        any ||= Boolean(chosen[flat]);
        found[flat] = any ? 1 : 0;
      }
    }
  }
  return found;
}

function single(tensor, index) {
  const mask = new Uint8Array(size(tensor.shape));
  mask[ravel(index, tensor.shape)] = 1;
  return mask;
}

function merged(one, other) {
  if (!one) return other;
  for (let flat = 0; flat < one.length; flat += 1) one[flat] |= other[flat];
  return one;
}

function isEmpty(mask) {
  return !mask || !mask.some(Boolean);
}

/** Masks by key of everything one element came from and everything it reaches, among the steps. */
function litBy(scene, key, index) {
  const chosen = scene.byKey.get(key);
  const back = new Map([[key, single(chosen, index)]]);
  const onward = new Map([[key, single(chosen, index)]]);
  for (const tensor of scene.tensors.toReversed()) {
    if (isEmpty(back.get(tensor.key))) continue;
    for (const link of tensor.links) {
      if (scene.byKey.get(link[0]).at === undefined) continue; // inputs are not drawn
      back.set(link[0], merged(back.get(link[0]), sourcesOf(scene, link, tensor, back.get(tensor.key))));
    }
  }
  for (const tensor of scene.tensors) {
    for (const link of tensor.links) {
      if (isEmpty(onward.get(link[0]))) continue;
      onward.set(tensor.key, merged(onward.get(tensor.key), targetsOf(scene, link, tensor, onward.get(link[0]))));
    }
  }
  const all = new Map();
  for (const tensor of scene.tensors) {
    const mask = new Uint8Array(size(tensor.shape));
    for (const part of [back.get(tensor.key), onward.get(tensor.key)]) if (part) merged(mask, part);
    all.set(tensor.key, mask);
  }
  return all;
}

// The same in words

/** What one element decides or is decided by, place by place: [{tensor, mask, count}]. */
function whereFrom(scene, tensor, chosen) {
  return (tensor.links ?? [])
    .map((link) => ({ tensor: scene.byKey.get(link[0]), mask: sourcesOf(scene, link, tensor, chosen) }))
    .map((place) => ({ ...place, count: counted(place.mask) }))
    .filter((place) => place.count);
}

function whereTo(scene, tensor, chosen) {
  return scene.tensors
    .flatMap((target) => target.links.filter((link) => link[0] === tensor.key).map((link) => [target, link]))
    .map(([target, link]) => ({ tensor: target, mask: targetsOf(scene, link, target, chosen) }))
    .filter((place) => !isEmpty(place.mask));
}

function counted(mask) {
  return mask.reduce((sum, lit) => sum + (lit ? 1 : 0), 0);
}

function storyOf(scene, key, index) {
  const start = scene.byKey.get(key);
  const said = inWords(start, single(start, index));
  const moves = [];
  let at = { tensor: start, mask: single(start, index) };
  let sources = whereFrom(scene, at.tensor, at.mask);
  while (sources.length === 1 && sources[0].count === 1 && sources[0].tensor.at !== undefined) {
    [at] = sources;
    moves.push(inWords(at.tensor, at.mask));
    sources = whereFrom(scene, at.tensor, at.mask);
  }
  const sentences = moves.length ? [`${said} was ${moves.join(", and before that ")}.`] : [];
  const named = (places) => listed(places.map((place) => inWords(place.tensor, place.mask)));
  if (sources.length) sentences.push(`${moves.length ? "It" : said} was computed from ${named(sources)}.`);
  const onward = whereTo(scene, start, single(start, index));
  if (onward.length) sentences.push(`It goes into ${named(onward)}.`);
  return sentences.join(" ");
}

/** A region as a person says it: K[head 1, token 2, dim 3]. */
function inWords(tensor, mask) {
  const places = tensor.shape.map(() => new Set());
  mask.forEach((lit, flat) => {
    if (lit) unravel(flat, tensor.shape).forEach((place, axis) => places[axis].add(place));
  });
  const parts = tensor.axes.map((axis, at) => part(axis, [...places[at]].sort((a, b) => a - b), tensor.shape[at]));
  return `${tensor.symbol}[${parts.join(", ")}]`;
}

function part(axis, places) {
  const word = axisWord(axis);
  if (places.length === 1) return `${word} ${places[0]}`;
  const words = word === "query" ? "queries" : `${word}s`;
  const dense = places.at(-1) - places[0] === places.length - 1;
  if (dense && places.length > 2) return `${words} ${places[0]} to ${places.at(-1)}`;
  return `${words} ${places.slice(0, -1).join(", ")} and ${places.at(-1)}`;
}

function axisWord(axis) {
  return AXIS_WORDS[axis] ?? (axis.includes("·") ? "column" : axis);
}

function axisGroups(axis) {
  return axis.split("·").map((name) => SAME_AXIS[name.replace(/^n_(kv_)?heads$/u, "head")] ?? name.replace(/^n_(kv_)?heads$/u, "head"));
}

function lights(view, axis) {
  return view.axis !== null && axisGroups(axis).some((group) => axisGroups(view.axis).includes(group));
}

// ---------------------------------------------------------------------------------------------------------------
// Words and numbers

function shapeText(shape) {
  return `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
}

function number(value, digits = 3) {
  if (value === -Infinity) return "−∞";
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

function valueAt(view, { key, index }) {
  const tensor = view.scene.byKey.get(key);
  const value = tensor.values[ravel(index, tensor.shape)];
  return tensor.symbol === "mask" ? (value ? "True" : "False") : number(value);
}

/** The tensors a shape was made from, for the headline: [[tensor …], tensor] without biases, tables and masks. */
function madeFrom(scene, tensor) {
  return tensor.links
    .map(([key]) => scene.byKey.get(key))
    .filter((source) => !/^(b_.|cos|sin|mask)$/u.test(source.symbol));
}

// ---------------------------------------------------------------------------------------------------------------
// Memory: the URL's s.* parameters, mirrored in sessionStorage

function pickOf([key, index]) {
  return { key, index: [...index] };
}

/** Takes over kept parameters; true when there were any. What this run has not is ignored. */
function recall(view, kept) {
  if (view.scene.letters.includes(kept.get("letter"))) view.letter = kept.get("letter");
  if (kept.get("code") in FLAVOURS) view.flavour = kept.get("code");
  if (kept.has("step")) view.step = kept.get("step");
  const [key, places = ""] = (kept.get("pick") ?? "").split(":");
  if (view.scene.byKey.get(key)?.at !== undefined && /^\d+(,\d+)*$/u.test(places)) {
    view.pick = { key, index: places.split(",").map(Number) };
  }
  return kept.size > 0;
}

/** Shows exactly what the address says, and the run's own start where it says nothing. */
function follow(view) {
  const { step, letter, pick } = view.scene.start;
  Object.assign(view, { step, letter, pick: pickOf(pick), flavour: "numpy" });
  recall(view, parametersOf(window.location.search));
  redraw(view);
}

/** Writes what the person chose. */
function remember(view) {
  if (!canRemember()) return;
  const { start } = view.scene;
  const text = ([key, index]) => `${key}:${index.join(",")}`;
  const chosen = {
    step: [view.step, start.step],
    letter: [view.letter, start.letter],
    pick: [text([view.pick.key, view.pick.index]), text(start.pick)],
    code: [view.flavour, "numpy"],
  };
  keepParameters(chosen);
}

// ---------------------------------------------------------------------------------------------------------------
// Building the page (text always goes in through textContent)

function build(view) {
  const dom = {};
  dom.problem = el("p", { className: "hst-problem", role: "status", hidden: true });
  dom.sentence = el("p", { className: "hst-sentence" });
  dom.shapes = el("p", { className: "hst-shapes" });
  dom.spoken = el("p", { className: "hs-aside", "aria-live": "polite" });
  dom.track = el("div", { className: "hst-track", role: "group", "aria-label": "The seven steps", tabindex: "0" });
  dom.body = el("div", { className: "hst-body", hidden: true }, [
    el("div", { className: "hst-headline" }, [dom.sentence, dom.shapes, dom.spoken]),
    dom.track,
    el("div", { className: "hst-desk" }, [buildCodePane(view, dom), buildFollow(view, dom)]),
  ]);
  dom.root = el("section", { className: "hst", "aria-label": "Shape track" }, [dom.problem, dom.body]);
  return dom;
}

function buildCodePane(view, dom) {
  dom.flavours = Object.entries(FLAVOURS).map(([flavour, label]) =>
    button(label, "", () => chooseFlavour(view, flavour), { "data-flavour": flavour }),
  );
  dom.copy = button("Copy", "hst-copy", () => copyCode(view), { title: "Copy the whole program: it runs as it is." });
  dom.lines = el("pre", { className: "hst-lines", tabindex: "0", "aria-label": "The program" });
  dom.memory = el("p", { className: "hst-memory" });
  return el("div", { className: "hst-code" }, [
    el("div", { className: "hst-codebar" }, [
      el("div", { className: "hst-switch", role: "group", "aria-label": "Dialect of the code" }, dom.flavours),
      dom.copy,
    ]),
    dom.lines,
    dom.memory,
  ]);
}

function buildFollow(view, dom) {
  dom.letters = ["Q", "K", "V"].map((letter) =>
    button(letter, "", () => chooseLetter(view, letter), { "data-letter": letter, title: `Walk with ${letter}` }),
  );
  dom.story = el("p", { className: "hst-story" });
  dom.element = el("p", { className: "hst-element" });
  dom.next = button("Next step →", "hst-main", () => stepBy(view, 1));
  dom.back = button("←", "", () => stepBy(view, -1), { "aria-label": "Step back", title: "Step back" });
  dom.play = button("Play", "", () => togglePlay(view));
  dom.predict = button("Predict", "", () => startGuess(view));
  dom.breakIt = button("Break it", "", () => breakIt(view));
  dom.facts = el("p", { className: "hst-facts" });
  dom.guess = buildGuess(view, dom);
  dom.walk = el("div", { className: "hst-walk" }, [dom.element, dom.story]);
  dom.buttons = el("div", { className: "hst-buttons" }, [dom.back, dom.next, dom.play, dom.breakIt, dom.predict]);
  return el("div", { className: "hst-follow" }, [
    el("div", { className: "hst-followbar" }, [
      el("h2", { text: "Follow one number" }),
      el("div", { className: "hst-switch hst-letters", role: "group", "aria-label": "Which projection" }, dom.letters),
    ]),
    dom.walk,
    dom.guess,
    dom.buttons,
    dom.facts,
  ]);
}

function buildGuess(view, dom) {
  dom.guessLine = el("code", {});
  dom.guessBox = el("input", {
    type: "text",
    id: "hst-guess",
    inputmode: "text",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "for example 4, 8",
  });
  dom.guessSaid = el("p", { className: "hst-said", role: "status" });
  const form = el("form", { on: { submit: (event) => { event.preventDefault(); checkGuess(view); } } }, [
    el("label", { for: "hst-guess", text: "The shape after this line" }),
    dom.guessLine,
    el("div", { className: "hst-buttons" }, [
      dom.guessBox,
      el("button", { type: "submit", className: "hst-main", text: "Check" }),
      button("Show me", "", () => revealGuess(view)),
      button("Stop", "", () => endGuess(view)),
    ]),
    dom.guessSaid,
  ]);
  return el("div", { className: "hst-guess", hidden: true }, [form]);
}

// ---------------------------------------------------------------------------------------------------------------
// Cards

function buildCards(view) {
  const path = pathOf(view);
  const stops = view.scene.stops.filter(([mark]) => path.some((tensor) => tensor.number === mark));
  view.cards = stops.map(([mark, title]) => buildCard(view, mark, title, path.filter((one) => one.number === mark)));
  view.dom.track.replaceChildren(...view.cards.map((card) => card.node));
}

function buildCard(view, mark, title, parts) {
  const card = { mark, title, parts, tensor: parts.at(-1), block: null };
  card.button = button("", "hst-title", () => goTo(view, shownIn(view, card).key));
  card.canvas = el("canvas", { role: "img" });
  card.canvas.addEventListener("click", (event) => pressed(view, card, event));
  card.canvas.addEventListener("pointermove", (event) => pointed(view, card, event));
  for (const side of ["top", "left", "bottom"]) card[side] = el("div", { className: `hst-${side}` });
  card.frame = el("div", { className: "hst-frame" }, [card.top, card.left, card.canvas, card.bottom]);
  card.hidden = el("div", { className: "hst-unknown", text: "?", hidden: true });
  card.line = el("code", { className: "hst-line" });
  card.shape = el("p", { className: "hst-shape" });
  card.picks = parts.map((tensor) => button(tensor.name, "", () => goTo(view, tensor.key)));
  card.choose = el("div", { className: "hst-parts", role: "group", "aria-label": `Parts of step ${mark}` }, card.picks);
  card.node = el("article", { className: "hst-card", "data-number": mark }, [
    card.button,
    card.choose,
    card.frame,
    card.hidden,
    card.line,
    card.shape,
  ]);
  return card;
}

/** The tensor a card shows: the one stood at, else its last. */
function shownIn(view, card) {
  return card.parts.find((tensor) => tensor.key === view.step) ?? card.parts.at(-1);
}

/** Whether a prediction keeps a tensor's shape secret. */
function isSecret(view, tensor) {
  if (!view.guess) return false;
  const { tensors } = view.scene;
  const target = view.scene.byKey.get(view.guess.target);
  const from = tensors.findIndex((one) => one.number === target.number && one.name === target.name);
  return tensors.indexOf(tensor) >= from;
}

// ---------------------------------------------------------------------------------------------------------------
// Showing

/** Everything that depends on size or theme, and the picture itself. */
function refresh(view) {
  const { root } = view.dom;
  const width = root.clientWidth;
  if (!view.scene || !width) return;
  root.dataset.theme = isDark(view) ? "dark" : "light";
  root.dataset.size = width >= 900 ? "wide" : width < 700 ? "phone" : "middle";
  view.palette = readPalette(view);
  show(view);
  bringIntoView(view);
}

function show(view) {
  const { root } = view.dom;
  Object.assign(root.dataset, { step: view.step, letter: view.letter, pick: `${view.pick.key}:${view.pick.index}` });
  root.dataset.role = here(view).role;
  showHeadline(view);
  view.cards.forEach((card) => showCard(view, card));
  showCode(view);
  showFollow(view);
  view.cards.forEach((card) => paint(view, card));
  root.dataset.painted = String(Number(root.dataset.painted ?? 0) + 1);
}

function showHeadline(view) {
  const tensor = here(view);
  const { sentence, shapes } = view.dom;
  if (view.guess) {
    const target = view.scene.byKey.get(view.guess.target);
    sentence.replaceChildren(el("strong", { text: `Next: step ${target.number}, ${target.name}.` }), " Which shape comes out?");
  } else {
    sentence.replaceChildren(
      el("strong", { text: `Step ${tensor.number}, ${tensor.name}.` }),
      " ",
      ...prose(view, tensor.sentence),
    );
  }
  const parts = view.guess ? guessChain(view) : chain(view, tensor);
  shapes.replaceChildren(...parts);
  const beneath = [...shapes.querySelectorAll(".hst-under")].reduce((sum, name) => sum + name.textContent.length, 0);
  const letters = shapes.textContent.length - beneath;
  const room = view.dom.root.clientWidth;
  const most = view.dom.root.dataset.size === "phone" ? 34 : 54;
  shapes.style.fontSize = `${clamp(Math.floor(room / (letters * 0.56)), 17, most)}px`;
}

/** The sentence with every axis name in it lighting that axis. */
function prose(view, text) {
  return text.split(AXIS_IN_PROSE).map((piece, place) => {
    if (place % 2 === 0) return piece;
    const word = piece.toLowerCase().replace(/^queries$/u, "query").replace(/s$/u, "");
    const axis = word === "token" ? "seq" : word;
    return axisSpan(view, axis, piece, "hst-axis");
  });
}

function axisSpan(view, axis, text, className) {
  const node = el("span", { className, text, "data-axis": axis });
  node.addEventListener("pointerenter", () => lightAxis(view, axis));
  node.addEventListener("pointerleave", () => lightAxis(view, null));
  node.addEventListener("click", (event) => {
    event.stopPropagation();
    lightAxis(view, view.axis === axis ? null : axis);
  });
  return node;
}

function chain(view, tensor) {
  const sources = madeFrom(view.scene, tensor);
  if (sources.length > 1) {
    const [one, other] = sources;
    return [
      ...shapeParts(view, one, one.symbol),
      sign(" · "),
      ...shapeParts(view, other, other.symbol),
      sign(" → "),
      ...shapeParts(view, tensor, "", true),
    ];
  }
  const line = [tensor];
  while (line.length < 3) {
    const before = line[0].links ? madeFrom(view.scene, line[0]) : [];
    if (before.length !== 1) break;
    line.unshift(before[0]);
  }
  return line.flatMap((one, place) => [
    ...(place ? [sign(" → ")] : []),
    ...shapeParts(view, one, "", place === line.length - 1),
  ]);
}

function guessChain(view) {
  const target = view.scene.byKey.get(view.guess.target);
  const sources = madeFrom(view.scene, target);
  return [
    ...sources.flatMap((one, place) => [...(place ? [sign(" · ")] : []), ...shapeParts(view, one, one.symbol)]),
    sign(" → "),
    el("span", { className: "hst-now", text: "( ? )" }),
  ];
}

function sign(text) {
  return el("span", { className: "hst-sign", text });
}

/** (4, 2, 4) with each number lighting its axis and the axis' name beneath. */
function shapeParts(view, tensor, symbol = "", now = false) {
  const inner = tensor.shape.flatMap((length, axis) => {
    const name = tensor.axes[axis];
    const node = axisSpan(view, name, "", "hst-num");
    node.append(el("span", { text: String(length) }), el("span", { className: "hst-under", text: shortAxis(name) }));
    return axis ? [", ", node] : [node];
  });
  const children = ["(", ...inner, ")"];
  if (symbol) children.unshift(el("span", { className: "hst-symbol", text: `${symbol} ` }));
  return [el("span", { className: `hst-whole${now ? " hst-now" : ""}`, "data-role": tensor.role ?? "input" }, children)];
}

function shortAxis(name) {
  return name.includes("·") ? "columns" : name;
}

function showCard(view, card) {
  const tensor = shownIn(view, card);
  card.tensor = tensor;
  const on = tensor.key === view.step;
  const secret = isSecret(view, tensor);
  card.node.toggleAttribute("data-on", on);
  card.node.dataset.role = tensor.role;
  card.button.textContent = `${card.mark} ${on ? tensor.name : card.title}`;
  card.button.setAttribute("aria-current", on ? "step" : "false");
  card.choose.hidden = !on || card.parts.length < 2 || Boolean(view.guess);
  card.picks.forEach((pick, place) => pick.setAttribute("aria-pressed", String(card.parts[place].key === view.step)));
  card.frame.hidden = secret;
  card.hidden.hidden = !secret;
  card.line.textContent = secret ? "" : tensor.line[view.flavour === "torch" ? "torch" : "numpy"];
  card.shape.textContent = secret ? "( ? )" : shapeText(tensor.shape);
  if (!secret) labelCard(view, card, tensor);
}

function labelCard(view, card, tensor) {
  const kind = kindOf(tensor);
  const [rows, columns] = kind === "layers" ? [1, 2] : kind === "pieces" ? [0, 2] : [0, 1];
  const label = (axis) => axisLabel(view, tensor, axis);
  card.left.replaceChildren(label(rows));
  card.bottom.replaceChildren(label(columns));
  const third = kind === "layers" ? 0 : kind === "pieces" ? 1 : null;
  card.top.replaceChildren(...(third === null ? [] : [label(third)]));
  if (kind === "layers" && tensor.shape[0] > 1) {
    card.top.append(el("span", { className: "hst-front", text: `in front: ${axisWord(tensor.axes[0])} ${frontOf(view, tensor)}` }));
  }
  const words = tensor.axes.map((axis, at) => `${axis} ${tensor.shape[at]}`).join(", ");
  card.canvas.setAttribute("aria-label", `${tensor.symbol}: ${words}. ${counted(view.lit.get(tensor.key))} elements lit.`);
}

function axisLabel(view, tensor, axis) {
  const name = tensor.axes[axis];
  const text = name.includes("·") ? name.replace(/^n_/u, "") : `${name} = ${tensor.shape[axis]}`;
  const node = axisSpan(view, name, text, "hst-edge");
  node.toggleAttribute("data-lit", lights(view, name));
  node.title = `Axis ${axis}: ${name}, ${tensor.shape[axis]} long`;
  return node;
}

function showFollow(view) {
  const { dom, scene } = view;
  const { letters, element, story, next, back, play, guess, walk, buttons, facts } = dom;
  letters.forEach((one) => one.setAttribute("aria-pressed", String(one.dataset.letter === view.letter)));
  const tensor = scene.byKey.get(view.pick.key);
  const secret = Boolean(view.guess);
  element.replaceChildren(
    el("b", { text: inWords(tensor, single(tensor, view.pick.index)) }),
    ` = ${valueAt(view, view.pick)}`,
    ...tokenNote(view, tensor),
  );
  story.textContent = view.story;
  const path = pathOf(view);
  const at = path.findIndex((one) => one.key === view.step);
  next.textContent = at === path.length - 1 ? "First step ↺" : "Next step →";
  back.disabled = at === 0;
  play.textContent = view.timer ? "Pause" : "Play";
  play.setAttribute("aria-pressed", String(Boolean(view.timer)));
  guess.hidden = !secret;
  walk.hidden = buttons.hidden = secret;
  if (secret) {
    dom.guessLine.textContent = scene.byKey.get(view.guess.target).line[view.flavour];
    dom.guessSaid.textContent = view.guess.said;
  }
  const { seq_len, d_model, n_heads, n_kv_heads, d_head } = scene.sizes;
  const words = [`${seq_len} tokens`, `d_model ${d_model}`, `${n_heads} heads`, `${n_kv_heads} K/V heads`, `d_head ${d_head}`];
  facts.replaceChildren(
    `${words.join(" · ")} · causal ${scene.causal ? "on" : "off"} · ${scene.source}`,
    ...scene.notes.flatMap((note) => [el("br"), note]),
  );
}

/** Which words the chosen element's tokens are, where there is a text. */
function tokenNote(view, tensor) {
  if (!view.scene.tokens.length) return [];
  const words = tensor.axes.flatMap((axis, at) =>
    ["seq", "query", "key"].includes(axis) ? [`${axisWord(axis)} ${view.pick.index[at]} is “${view.scene.tokens[view.pick.index[at]]}”`] : [],
  );
  return words.length ? [el("span", { className: "hst-token", text: ` (${words.join(", ")})` })] : [];
}

// Code

function buildCode(view) {
  const { text } = view.scene.code[view.flavour];
  view.dom.lines.replaceChildren(
    ...text.trimEnd().split("\n").map((line) => el("span", { className: "hst-row" }, codeParts(line))),
  );
}

function codeParts(line) {
  const at = line.indexOf("#");
  if (at < 0) return [line || " "];
  return [line.slice(0, at), el("span", { className: "hst-comment", text: line.slice(at) })];
}

function showCode(view) {
  const { flavours, lines, memory } = view.dom;
  flavours.forEach((one) => one.setAttribute("aria-pressed", String(one.dataset.flavour === view.flavour)));
  const { lines: places, text } = view.scene.code[view.flavour];
  const rows = [...lines.children];
  const written = text.trimEnd().split("\n");
  rows.forEach((row, place) => {
    row.toggleAttribute("data-on", place === places[view.step]);
    row.replaceChildren(...codeParts(written[place]));
  });
  for (const tensor of view.scene.tensors) {
    if (!isSecret(view, tensor)) continue;
    const row = rows[places[tensor.key]];
    row.replaceChildren(...codeParts(written[places[tensor.key]].replace(/# \(.*\)$/u, "# ?")));
  }
  const row = rows[places[view.step]];
  const middle = row.offsetTop - lines.clientHeight / 2 + row.offsetHeight / 2;
  lines.scrollTop = clamp(middle, 0, lines.scrollHeight);
  memory.textContent = view.guess ? "" : [here(view).memory, view.scene.code_note].filter(Boolean).join(" ");
}

async function copyCode(view) {
  const { copy } = view.dom;
  const { text } = view.scene.code[view.flavour];
  try {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
  } catch {
    // Without https browsers refuse the clipboard: select the program, so that one key copies it.
    window.getSelection()?.selectAllChildren(view.dom.lines);
    copy.textContent = "Press Ctrl+C";
  }
  view.dom.spoken.textContent = copy.textContent;
  setTimeout(() => { copy.textContent = "Copy"; }, 2000);
}

// ---------------------------------------------------------------------------------------------------------------
// Painting blocks

function readPalette(view) {
  const { read, readAll, font } = readStyle(view);
  const roles = Object.fromEntries(
    ["query", "key", "value", "weights", "output"].map((role) => [role, parseColour(read(role))]),
  );
  const inks = readAll(["text", "muted", "line", "void", "lit", "accent"]);
  return { roles, inks, ground: parseColour(read("card")), font };
}

/** Flat tables, rows cut into head pieces (split, permuted back), or heads as layers in depth. */
function kindOf(tensor) {
  if (tensor.shape.length < 3) return "flat";
  return ["head", "kv_head"].includes(tensor.axes[0]) ? "layers" : "pieces";
}

/** The layer drawn in front: the chosen element's, or the first lit one. */
function frontOf(view, tensor) {
  if (view.pick.key === tensor.key) return view.pick.index[0];
  const mask = view.lit.get(tensor.key);
  const first = mask.indexOf(1);
  return first < 0 ? 0 : unravel(first, tensor.shape)[0];
}

function layOut(view, tensor, width, height, focus) {
  const kind = kindOf(tensor);
  const { shape } = tensor;
  const layers = kind === "layers" ? shape[0] : 1;
  const pieces = kind === "pieces" ? shape[1] : 1;
  const rows = kind === "layers" ? shape[1] : shape[0];
  const columns = shape.at(-1);
  const behind = Math.min(layers, MOST_LAYERS) - 1;
  const gap = pieces > 1 ? clamp((width * 0.25) / (pieces - 1), 2, focus ? 14 : 8) : 0;
  const most = focus ? 52 : 22;
  const reach = behind ? clamp(Math.min(width, height) * 0.24, 10, focus ? 44 : 30) : 0;
  const roomX = width - reach - gap * (pieces - 1) - 4;
  const roomY = height - reach - 4;
  let cellX = Math.min(most, roomX / (columns * pieces));
  let cellY = Math.min(most, roomY / rows);
  if (cellX >= 4) {
    const square = Math.min(cellX, cellY);
    cellX = Math.min(cellX, square * (focus ? 1.6 : 1.2)); // wider where numbers are written
    cellY = square;
  } else {
    cellY = Math.min(roomY / rows, Math.max(cellX, 9));
  }
  const shift = behind ? Math.min(reach / behind, Math.max(3, cellY * 0.75)) : 0;
  const wide = cellX * columns * pieces + gap * (pieces - 1);
  const tall = cellY * rows;
  return {
    kind, layers, pieces, rows, columns, behind, gap, cellX, cellY, shift, wide, tall,
    left: Math.max(2, (width - wide - shift * behind) / 2),
    top: Math.max(2, (height - tall - shift * behind) / 2) + shift * behind,
    front: kind === "layers" ? frontOf(view, tensor) : 0,
  };
}

/** Layer number of the k-th layer from the front. */
function layerAt(block, depth) {
  return (block.front + depth) % block.layers;
}

function indexOf(block, layer, piece, row, column) {
  if (block.kind === "layers") return [layer, row, column];
  return block.kind === "pieces" ? [row, piece, column] : [row, column];
}

function cellBox(block, depth, piece, row, column) {
  const x = block.left + depth * block.shift + piece * (block.columns * block.cellX + block.gap) + column * block.cellX;
  const y = block.top - depth * block.shift + row * block.cellY;
  return [x, y];
}

function paint(view, card) {
  if (card.frame.hidden) return;
  const { canvas, tensor } = card;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (!width || !height) return;
  const context = contextOf(canvas, width, height);
  const block = layOut(view, tensor, width, height, card.node.hasAttribute("data-on"));
  card.block = block;
  const mask = view.lit.get(tensor.key);
  // A few lit elements get an outline; where much is lit, the full colour says enough.
  const lit = counted(mask);
  const few = lit <= mask.length / 2 && lit <= Math.max(8, 2 * Math.max(...tensor.shape));
  placeLabels(card, block, width, height);
  for (let depth = block.behind; depth >= 0; depth -= 1) paintLayer(view, context, tensor, block, depth, mask, few);
  paintAxes(view, context, tensor, block);
}

/** Axis names stand at the edges of the block, not of the canvas. */
function placeLabels(card, block, width, height) {
  const { left, top, wide, tall, shift, behind } = block;
  const aside = left + wide / 2 - width / 2;
  card.left.style.translate = `${Math.max(0, left - 4)}px ${top + tall / 2 - height / 2}px`;
  card.bottom.style.translate = `${aside}px ${top + tall - height + 4}px`;
  card.top.style.translate = `0 ${Math.max(0, top - shift * behind - 6)}px`;
}

function paintLayer(view, context, tensor, block, depth, mask, few) {
  const layer = layerAt(block, depth);
  const [left, top] = cellBox(block, depth, 0, 0, 0);
  const edge = block.cellX >= 4 ? 1 : 0;
  context.fillStyle = `rgb(${view.palette.ground})`;
  for (let piece = 0; piece < block.pieces; piece += 1) {
    const [x] = cellBox(block, depth, piece, 0, 0);
    context.fillRect(x - edge, top - edge, block.columns * block.cellX + 2 * edge, block.tall + 2 * edge);
  }
  const draw = block.cellX >= 4 ? paintCells : paintHeat;
  draw(view, context, tensor, block, depth, layer, mask, few);
  if (block.layers > 1 && block.cellX < 4) {
    context.strokeStyle = view.palette.inks.line;
    context.strokeRect(left - 0.5, top - 0.5, block.wide + 1, block.tall + 1);
  }
}

function paintCells(view, context, tensor, block, depth, layer, mask, few) {
  const { inks, font } = view.palette;
  const chosen = view.pick.key === tensor.key ? ravel(view.pick.index, tensor.shape) : -1;
  const written = depth === 0 && block.cellX >= 29 && block.cellY >= 15;
  const inset = block.cellX >= 8 ? 1 : 0.5;
  for (let piece = 0; piece < block.pieces; piece += 1) {
    for (let row = 0; row < block.rows; row += 1) {
      for (let column = 0; column < block.columns; column += 1) {
        const flat = ravel(indexOf(block, layer, piece, row, column), tensor.shape);
        const [x, y] = cellBox(block, depth, piece, row, column);
        const box = [x + inset, y + inset, block.cellX - 2 * inset, block.cellY - 2 * inset];
        const lit = Boolean(mask[flat]);
        const value = tensor.values[flat];
        const colour = flat === chosen ? parseColour(inks.lit) : cellColour(view, tensor, value, lit, depth);
        context.fillStyle = `rgb(${colour})`;
        roundedBox(context, box, Math.min(3, block.cellX / 5));
        context.fill();
        if (value === -Infinity && block.cellX >= 8) hatch(context, box, inks.muted);
        if ((lit && few) || flat === chosen) {
          context.lineWidth = flat === chosen ? 2.5 : 1.75;
          context.strokeStyle = inks.text;
          context.stroke();
        }
        if (written) writeValue(context, tensor, value, box, colour, lit, font);
      }
    }
  }
}

function roundedBox(context, [x, y, width, height], radius) {
  context.beginPath();
  context.roundRect(x, y, width, height, radius);
}

function hatch(context, [x, y, width, height], ink) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = ink;
  context.lineWidth = 1;
  context.globalAlpha = 0.55;
  context.beginPath();
  for (let at = -height; at < width; at += 5) {
    context.moveTo(x + at, y + height);
    context.lineTo(x + at + height, y);
  }
  context.stroke();
  context.restore();
}

function writeValue(context, tensor, value, [x, y, width, height], colour, lit, font) {
  const [red, green, blue] = colour;
  const dark = 0.299 * red + 0.587 * green + 0.114 * blue < 140;
  const digits = width >= 40 && Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0;
  const text = tensor.symbol === "mask" ? (value ? "T" : "F") : number(value, digits);
  context.font = `${lit ? "600 " : ""}${clamp(Math.floor(Math.min(height * 0.5, width / 2.9)), 9, 15)}px ${font}`;
  context.fillStyle = dark ? "#ffffff" : "#10131a";
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, x + width / 2, y + height / 2 + 0.5);
}

/** One pixel per number, stretched; lit places get a bar wide enough to see. */
function paintHeat(view, context, tensor, block, depth, layer, mask, few) {
  const { inks } = view.palette;
  const { rows, columns } = block;
  for (let piece = 0; piece < block.pieces; piece += 1) {
    const picture = new ImageData(columns, rows);
    const pixels = picture.data;
    for (let row = 0; row < rows; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const flat = ravel(indexOf(block, layer, piece, row, column), tensor.shape);
        const colour = cellColour(view, tensor, tensor.values[flat], Boolean(mask[flat]), depth);
        pixels.set([...colour, 255], 4 * (row * columns + column));
      }
    }
    const sheet = new OffscreenCanvas(columns, rows);
    sheet.getContext("2d").putImageData(picture, 0, 0);
    const [x, y] = cellBox(block, depth, piece, 0, 0);
    context.imageSmoothingEnabled = columns * block.cellX < columns;
    context.drawImage(sheet, x, y, columns * block.cellX, block.tall);
  }
  if (few) outlineRuns(view, context, tensor, block, depth, layer, mask);
}

/** Frames round what is lit in a heatmap: runs of a row, joined where rows below hold the same run. */
function outlineRuns(view, context, tensor, block, depth, layer, mask) {
  const { inks } = view.palette;
  const chosen = view.pick.key === tensor.key ? ravel(view.pick.index, tensor.shape) : -1;
  for (let piece = 0; piece < block.pieces; piece += 1) {
    for (const { row, rows, from, to } of litRuns(tensor, block, layer, piece, mask)) {
      const [x, y] = cellBox(block, depth, piece, row, from);
      const wide = (to - from) * block.cellX;
      const tall = rows * block.cellY;
      const one = to - from === 1 && rows === 1;
      // Narrower than the eye sees: widened about its middle.
      const box = [x - Math.max(0, 5 - wide) / 2, y - Math.max(0, 5 - tall) / 2, Math.max(5, wide), Math.max(5, tall)];
      const own = one && ravel(indexOf(block, layer, piece, row, from), tensor.shape) === chosen;
      context.fillStyle = inks.lit;
      if (own) context.fillRect(...box);
      context.strokeStyle = inks.text;
      context.lineWidth = 2;
      context.strokeRect(...box);
    }
  }
}

function litRuns(tensor, block, layer, piece, mask) {
  const runs = [];
  for (let row = 0; row < block.rows; row += 1) {
    for (let from = 0; from < block.columns; from += 1) {
      const isLit = (column) => mask[ravel(indexOf(block, layer, piece, row, column), tensor.shape)];
      if (!isLit(from)) continue;
      let to = from + 1;
      while (to < block.columns && isLit(to)) to += 1;
      const above = runs.find((run) => run.row + run.rows === row && run.from === from && run.to === to);
      if (above) above.rows += 1;
      else runs.push({ row, rows: 1, from, to });
      from = to;
    }
  }
  return runs;
}

/** From the card's ground to the concept's colour; what is not lit stays pale, layers behind are paler. */
function cellColour(view, tensor, value, lit, depth) {
  const { roles, ground, inks } = view.palette;
  if (value === -Infinity) return parseColour(inks.void);
  const [low, high] = tensor.symbol === "weights" || tensor.symbol === "mask" ? [0, 1] : tensor.range;
  const share = high > low ? clamp((value - low) / (high - low), 0, 1) : 0.5;
  const strength = lit ? 0.28 + 0.66 * share : 0.1 + 0.34 * share;
  const faded = depth ? strength * 0.8 : strength;
  return ground.map((part, at) => Math.round(part + (roles[tensor.role][at] - part) * faded));
}

/** A heavy line along the edge of a lit axis. */
function paintAxes(view, context, tensor, block) {
  if (view.axis === null) return;
  const { left, top, wide, tall, shift, behind } = block;
  const [rows, columns] = block.kind === "layers" ? [1, 2] : block.kind === "pieces" ? [0, 2] : [0, 1];
  const lines = [
    [rows, [left - 2, top, left - 2, top + tall]],
    [columns, [left, top + tall + 2, left + wide, top + tall + 2]],
  ];
  if (block.kind === "layers") {
    lines.push([0, [left, top - 2, left + shift * behind, top - 2 - shift * behind]]);
    lines.push([0, [left + wide + 2, top, left + wide + 2 + shift * behind, top - shift * behind]]);
  }
  if (block.kind === "pieces") lines.push([1, [left, top - 3, left + wide, top - 3]]);
  context.strokeStyle = view.palette.inks.accent;
  context.lineWidth = 4;
  context.lineCap = "round";
  for (const [axis, [fromX, fromY, toX, toY]] of lines) {
    if (!lights(view, tensor.axes[axis])) continue;
    context.beginPath();
    context.moveTo(fromX, fromY);
    context.lineTo(toX, toY);
    context.stroke();
  }
}

/** The element under a point of a card's canvas, or null. */
function elementAt(card, x, y) {
  const { block } = card;
  if (!block) return null;
  for (let depth = 0; depth <= block.behind; depth += 1) {
    for (let piece = 0; piece < block.pieces; piece += 1) {
      const [left, top] = cellBox(block, depth, piece, 0, 0);
      const column = Math.floor((x - left) / block.cellX);
      const row = Math.floor((y - top) / block.cellY);
      if (row >= 0 && row < block.rows && column >= 0 && column < block.columns) {
        return indexOf(block, layerAt(block, depth), piece, row, column);
      }
    }
  }
  return null;
}

// ---------------------------------------------------------------------------------------------------------------
// Doing

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

// Predicting

function startGuess(view) {
  if (view.timer) stopPlaying(view);
  const path = pathOf(view);
  let at = path.findIndex((tensor) => tensor.key === view.step);
  if (at === path.length - 1) {
    at = 0;
    view.step = path[0].key;
  }
  view.guess = { target: path[at + 1].key, said: "" };
  show(view);
  view.dom.guessBox.value = "";
  view.dom.guessBox.focus({ preventScroll: true });
  say(view, `Predict the shape after ${path[at + 1].line[view.flavour]}`);
}

function endGuess(view) {
  view.guess = null;
  show(view);
  view.dom.predict.focus({ preventScroll: true });
}

function revealGuess(view) {
  const target = view.scene.byKey.get(view.guess.target);
  view.guess = null;
  goTo(view, target.key);
  view.dom.predict.focus({ preventScroll: true });
}

function checkGuess(view) {
  const target = view.scene.byKey.get(view.guess.target);
  const wrong = whyWrong(target, madeFrom(view.scene, target), view.dom.guessBox.value);
  if (wrong === null) {
    revealGuess(view);
    view.dom.sentence.prepend(el("span", { className: "hst-right", text: "Right. " }));
    say(view, `Right. ${shapeText(target.shape)}. ${target.sentence}`);
    return;
  }
  view.guess.said = wrong;
  view.dom.guessSaid.textContent = wrong;
  view.dom.guessBox.select();
}

/** Why a typed shape is wrong, in one or two sentences that do not give the answer away; null when it is right. */
function whyWrong(target, sources, typed) {
  const inner = typed.trim().replace(/^[([]/u, "").replace(/[)\]]$/u, "");
  const parts = inner.split(/[\s,×x]+/u).filter(Boolean);
  if (!parts.length || !parts.every((part) => /^\d{1,6}$/u.test(part))) {
    return "Type whole numbers with commas between them, like 4, 8.";
  }
  const guess = parts.map(Number);
  const names = target.axes.map(axisName).join(", ");
  if (guess.length !== target.shape.length) {
    const axes = (count) => `${count} ${count === 1 ? "axis" : "axes"}`;
    return `You typed ${axes(guess.length)}. This line leaves ${axes(target.shape.length)}: ${names}.`;
  }
  if (guess.every((length, axis) => length === target.shape[axis])) return null;
  const whole = sources.length === 1 ? size(sources[0].shape) : null;
  const moved = whole === size(target.shape);
  if (moved && size(guess) !== whole) {
    return `${guess.join(" · ")} is ${size(guess)} numbers, and there are ${whole}. This line neither makes nor loses any.`;
  }
  const sorted = (shape) => [...shape].sort((one, other) => one - other).join();
  if (sorted(guess) === sorted(target.shape)) {
    return `The right sizes in another order. The order of the axes is ${names}.`;
  }
  const at = guess.findIndex((length, axis) => length !== target.shape[axis]);
  return `Axis ${at} is ${axisName(target.axes[at])}, and that is not ${guess[at]}. ${hintFor(target.axes[at])}`;
}

function axisName(axis) {
  return axis.includes("·") ? axis : `${axis}`;
}

function hintFor(axis) {
  if (["seq", "query", "key"].includes(axis)) return "Count the tokens.";
  if (axis === "head") return "Count the query heads.";
  if (axis === "kv_head") return "Count the K/V heads.";
  if (axis.includes("·")) return "Multiply the number of heads by d_head.";
  return axis === "d_model" ? "W_o brings each row back to the width of x." : "d_head is the width of one head.";
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
