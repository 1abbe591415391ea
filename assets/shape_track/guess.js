// The shape track: predicting a shape.

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
