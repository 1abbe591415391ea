// The head viewer: the message becomes a scene, a scene gives rows of weights.

function decode(bytes) {
  const [header, start] = openMessage(bytes, 8);
  const body = bytes.subarray(start);
  const traces = header.traces.map((facts) => decodeTrace(facts, body));
  const [main, second = null] = traces;
  for (const [layer, head, query, weights] of header.exact) main.exact.set(`${layer},${head},${query}`, weights);
  return { ...header, main, second, traces };
}

function decodeTrace(facts, body) {
  const size = facts.labels.length;
  const bytesPerHead = facts.causal ? (size * (size + 1)) / 2 : size * size;
  const places = new Map(facts.full.map(([layer, head], place) => [`${layer},${head}`, place]));
  const block = Math.ceil(size / POOLED_SIDE);
  return {
    ...facts,
    size,
    body,
    places,
    bytesPerHead,
    layers: facts.n_layers,
    heads: facts.n_heads,
    pooledSide: facts.pooled_at === null ? 0 : Math.ceil(size / block),
    pooledBlock: block,
    isSpecial: Uint8Array.from({ length: size }, (_, index) => (facts.special.includes(index) ? 1 : 0)),
    exact: new Map(),
    resting: facts.resting,
  };
}

// ---------------------------------------------------------------------------------------------------------------
// Weights of one row

const WEIGHT_OF_BYTE = Float32Array.from({ length: 256 }, (_, byte) => (byte / 255) ** 2);

function isLoaded(trace, layer, head) {
  return trace.places.has(`${layer},${head}`);
}

/** The bytes of one row; causal rows hold query + 1 of them. null when this head was not sent in full. */
function rowBytes(trace, layer, head, query) {
  const place = trace.places.get(`${layer},${head}`);
  if (place === undefined) return null;
  const length = trace.causal ? query + 1 : trace.size;
  const inside = trace.causal ? (query * (query + 1)) / 2 : query * trace.size;
  const start = trace.full_at + place * trace.bytesPerHead + inside;
  return trace.body.subarray(start, start + length);
}

function topOfRow(trace, layer, head, query) {
  const at = trace.tops_at + 2 * (trace.places.get(`${layer},${head}`) * trace.size + query);
  return (trace.body[at] + 256 * trace.body[at + 1]) / 65535;
}

/** The whole row as weights, zero where masked. null when this head was not sent. */
function rawRow(trace, layer, head, query) {
  const row = new Float32Array(trace.size);
  const exact = trace.exact.get(`${layer},${head},${query}`);
  if (exact) {
    row.set(exact);
    return row;
  }
  const bytes = rowBytes(trace, layer, head, query);
  if (!bytes) return null;
  let top = 0;
  for (let key = 0; key < bytes.length; key += 1) {
    row[key] = WEIGHT_OF_BYTE[bytes[key]];
    if (bytes[key] > bytes[top]) top = key;
  }
  row[top] = topOfRow(trace, layer, head, query);
  return row;
}

/** 1 for each key hidden in this head: special tokens and sink columns. */
function restingColumns(trace, layer, head) {
  const columns = trace.isSpecial.slice();
  for (const column of trace.resting[layer][head].slice(1)) columns[column] = 1;
  return columns;
}

/** The row as shown: resting places blanked on request, the rest scaled up when renormalised. */
function shownRow(view, trace, layer, head, query) {
  const raw = rawRow(trace, layer, head, query);
  if (!raw) return null;
  const hidden = restingColumns(trace, layer, head);
  const weights = raw.slice();
  let hiddenShare = 0;
  for (let key = 0; key < raw.length; key += 1) {
    if (!hidden[key]) continue;
    hiddenShare += raw[key];
    if (view.options.hide) weights[key] = 0;
  }
  const left = 1 - hiddenShare;
  if (view.options.hide && view.options.renorm && left > 1e-4) {
    for (let key = 0; key < raw.length; key += 1) weights[key] /= left;
  }
  return { raw, weights, hidden, hiddenShare, top: largest(weights) };
}

function largest(row) {
  let best = 0;
  for (let index = 1; index < row.length; index += 1) if (row[index] > row[best]) best = index;
  return best;
}

/** The fewest keys, strongest first, that cover `percent` of the row's shown attention. */
function strongest(weights, percent, most = Infinity) {
  const order = [];
  let total = 0;
  for (let key = 0; key < weights.length; key += 1) {
    if (weights[key] > 0) order.push(key);
    total += weights[key];
  }
  order.sort((one, other) => weights[other] - weights[one]);
  const goal = (total * percent) / 100 - 1e-6;
  let covered = 0;
  let count = 0;
  while (count < order.length && count < most && covered < goal) {
    covered += weights[order[count]];
    count += 1;
  }
  return order.slice(0, count);
}

/** What is looked at now: where the view rests, with the preview on top. */
function focusOf(view) {
  return { ...view.at, ...(view.peek ?? {}) };
}

/** The same place in another trace: nearest valid index. */
function focusIn(trace, focus) {
  const last = trace.size - 1;
  return {
    layer: Math.min(focus.layer, trace.layers - 1),
    head: Math.min(focus.head, trace.heads - 1),
    query: Math.min(focus.query, last),
    key: focus.key === null ? null : Math.min(focus.key, last),
  };
}

// ---------------------------------------------------------------------------------------------------------------
// Words and numbers

function fraction(weight) {
  if (weight >= 0.995) return "1.00";
  return weight < 0.005 ? "<.01" : weight.toFixed(2).slice(1);
}

function shortList(names) {
  const unique = [...new Set(names)];
  return listed(unique.length > 3 ? [...unique.slice(0, 2), `${unique.length - 2} more`] : unique);
}
