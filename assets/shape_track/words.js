// The shape track: elements, shapes and numbers in words.

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
