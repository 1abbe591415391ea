// The shape track: where an element comes from and goes, by the engine's rules read in both directions.

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
