// The head viewer: what every attention head of a sentence looks at.
//
// One Streamlit Components-v2 component, also run by the offline file (attention/plots/viewer.py).
// It draws one binary message (see viewer.py for its layout) and keeps its own state on parentElement, so
// that hovering, choosing a head or a layer, hiding resting places and changing the scale cost no rerun.
//
// Upwards go only: state "lock" {layer, head, query, key} or null; state "layer" when a layer is needed that was
// not sent; trigger "ask" {action: "swap" | "why" | "twin" | "head"}.
//
// Keyboard, anywhere in the viewer: up/down = query word, left/right = head, Page Up/Down or shift+up/down =
// layer, Home/End = first/last word, Enter = lock, Esc = close or release.

const NAME = "head viewer";
const MAGIC = "HSV1";
const OWN = "v.";
const MEMORY = "__headscope_viewer";
const STORE = "headscope.viewer";
const HINTS = "headscope.hints";
const HINT_TEXTS = {
  word: "Click a word: its arrows show where it looks.",
  head: "Pick another head in the grid.",
  swap: "Change one word and watch the arrow move.",
};
const SCALES = {
  linear: { label: "0 to 1", title: "Colour runs from 0 to 1" },
  bright: { label: "bright (square root, still 0 to 1)", title: "Square root, still 0 to 1" },
  row: { label: "per row", title: "Each row up to its own largest weight" },
  log: { label: "log", title: "Logarithm, from 0.001 to 1" },
};
const DEFAULTS = { scale: "linear", hide: false, renorm: false, cut: 70, view: "arcs" };
const EASE_MS = 150;
const POOLED_SIDE = 30; // as in viewer.py
// Percent of the value colour in the recipe's segments, strongest first; each reads at 4.5 : 1 with its text.
const SHADES = { light: [100, 58, 46, 36, 28, 22], dark: [100, 72, 44, 34, 28, 22] };

/**
 * Draws, or redraws, the viewer in component.parentElement; returns the clean-up.
 * @param {{data: Uint8Array, parentElement: Element, setStateValue?: Function, setTriggerValue?: Function}} component
 */
export default function headViewer(component) {
  const host = component.parentElement;
  const view = host[MEMORY] ?? mount(host, atFirst());
  view.setState = component.setStateValue ?? null;
  view.ask = component.setTriggerValue ?? null;
  receive(view, component.data, redress);
  return () => takeDown(view);
}

// ---------------------------------------------------------------------------------------------------------------
// Life of the view

function atFirst() {
  return {
    message: null, // the bytes drawn
    scene: null, // the decoded message
    at: { layer: 0, head: 0, query: 0, key: null }, // where the view rests
    lock: null, // what was locked, or null
    peek: null, // what the pointer previews, laid over `at`
    options: { ...DEFAULTS },
    awaited: null, // the layer or head asked for and not here yet
    thumbs: new Map(), // "layer,head" -> small canvas
    painted: 0,
    frame: 0,
    panes: [],
  };
}

/** Takes a new scene in place: keeps the selection where it still makes sense. */
function adopt(view, scene) {
  const before = view.scene;
  view.scene = scene;
  view.peek = null;
  view.thumbs.clear();
  view.palette = null;
  if (before) carryOver(view, before, scene);
  else firstSelection(view, scene);
  clampSelection(view);
  // A link or a reload must show what is on screen now, also when a new text moved the selection.
  if (before && canRemember() && parametersOf(window.location.search).size) remember(view);
  fetchIfNeeded(view);
  view.dom.problem.hidden = true;
  view.dom.body.hidden = false;
  dressUp(view);
  showHints(view);
  buildCards(view);
  buildPanes(view);
  buildGridTop(view);
  repaint(view);
}

function firstSelection(view, scene) {
  const [layer, head, query] = scene.start;
  view.at = { layer, head, query, key: null };
  if (!canRemember()) return;
  const asked = parametersOf(window.location.search);
  recall(view, asked.size ? asked : ownStored(scene));
}

/** A new start moves the selection; otherwise the person's own choice stays. */
function carryOver(view, before, scene) {
  const [layer, head, query] = scene.start;
  const [oldLayer, oldHead, oldQuery] = before.start;
  const was = { ...view.at };
  const sameModel = before.main.model.id === scene.main.model.id;
  if (!sameModel || layer !== oldLayer || head !== oldHead) Object.assign(view.at, { layer, head });
  const sameText = before.main.text === scene.main.text;
  if (query !== oldQuery || before.main.size !== scene.main.size) view.at.query = query;
  if (!sameText) view.at.key = null;
  const stayed = ["layer", "head", "query"].every((name) => view.at[name] === was[name]);
  if (!sameModel || !stayed) setLock(view, null);
  else if (!sameText && view.lock) setLock(view, lockAt(view, { ...view.lock, key: null }));
}

function clampSelection(view) {
  const { main } = view.scene;
  view.at.layer = clamp(view.at.layer, 0, main.layers - 1);
  view.at.head = clamp(view.at.head, 0, main.heads - 1);
  view.at.query = clamp(view.at.query, 0, main.size - 1);
  if (view.at.key !== null && view.at.key >= main.size) view.at.key = null;
}

function listen(view) {
  const { root, gridScroll } = view.dom;
  // The grid is shown and hidden by itself while the page is presented.
  watchWindow(view, [root, gridScroll], { resized, themed: redress, recalled: repaint });
  listenTo(view, root, "keydown", (event) => onKey(view, event));
  view.stops.push(() => cancelAnimationFrame(view.frame), () => clearTimeout(view.tableTimer));
}

function resized(view) {
  dressUp(view);
  repaint(view);
}

/** The theme may have changed. */
function redress(view) {
  view.palette = null;
  resized(view);
}

// ---------------------------------------------------------------------------------------------------------------
// Message -> scene

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

// ---------------------------------------------------------------------------------------------------------------
// Memory: the URL's v.* parameters, mirrored in sessionStorage

/** Takes over kept parameters; true when there were any. Invalid values are ignored. */
function recall(view, kept) {
  const { main } = view.scene;
  const whole = (name, bound) => {
    const text = kept.get(name) ?? "";
    return /^\d+$/.test(text) && Number(text) < bound ? Number(text) : null;
  };
  view.at.layer = whole("layer", main.layers) ?? view.at.layer;
  view.at.head = whole("head", main.heads) ?? view.at.head;
  const query = whole("query", main.size);
  if (query !== null) Object.assign(view.at, { query, key: null });
  if (kept.get("scale") in SCALES) view.options.scale = kept.get("scale");
  if (kept.has("hide")) view.options.hide = kept.get("hide") === "true";
  if (kept.has("renorm")) view.options.renorm = kept.get("renorm") === "true";
  const cut = whole("cut", 101);
  if (cut !== null && cut >= 30) view.options.cut = cut;
  if (["arcs", "map"].includes(kept.get("view"))) view.options.view = kept.get("view");
  view.thumbs.clear();
  return kept.size > 0;
}

/** Shows exactly what the address says, and the scene's own start where it says nothing. */
function follow(view) {
  const [layer, head, query] = view.scene.start;
  Object.assign(view, { at: { layer, head, query, key: null }, peek: null, options: { ...DEFAULTS } });
  recall(view, parametersOf(window.location.search));
  if (view.lock) setLock(view, null);
  fetchIfNeeded(view);
  repaint(view);
}

function ownStored(scene) {
  const kept = storedParameters();
  return kept.get("of") === memoryKey(scene) ? kept : new Map();
}

function memoryKey(scene) {
  return `${scene.main.model.id} ${scene.main.text}`;
}

/** Writes what the person chose. */
function remember(view) {
  if (!canRemember()) return;
  const { layer, head, query } = view.at;
  const chosen = Object.entries({ layer, head, query, ...view.options });
  keepParameters(Object.fromEntries(chosen.map(([name, value]) => [name, [value, DEFAULTS[name]]])), memoryKey(view.scene));
}

// ---------------------------------------------------------------------------------------------------------------
// Building the page (text always goes in through textContent)

function word(text, role = "") {
  return el("bdi", { className: role, text, dir: "auto", title: text });
}

function build(view) {
  const dom = {};
  dom.problem = el("p", { className: "hs-notices", role: "status", hidden: true });
  dom.body = el("div", { hidden: true }, [
    buildHeadline(view, dom),
    el("div", { className: "hs-desk" }, [
      (dom.cards = el("div", { className: "hs-cards", role: "group", "aria-label": "Heads with a job" })),
      buildHeadPanel(view, dom),
      buildHeadsPanel(view, dom),
    ]),
    buildStrip(view, dom),
  ]);
  dom.root = el("section", { className: "hs", "aria-label": "Head viewer" }, [dom.problem, dom.body]);
  return dom;
}

function buildHeadline(view, dom) {
  dom.sentence = el("h2");
  dom.where = el("span", { className: "hs-where" });
  dom.lock = button("", "hs-lock", () => release(view), { title: "Release the lock (Esc)" });
  dom.swap = button("", "hs-pill", () => view.ask?.("ask", { action: "swap" }));
  dom.spoken = el("span", { className: "hs-aside", "aria-live": "polite" });
  dom.notices = el("p", { className: "hs-notices" });
  dom.headline = el("div", { className: "hs-headline" }, [
    dom.sentence,
    dom.where,
    dom.lock,
    el("span", { className: "hs-space" }),
    dom.swap,
    dom.spoken,
  ]);
  dom.hints = el("div", { className: "hs-hints", role: "group", "aria-label": "First steps" });
  return el("div", {}, [dom.headline, dom.hints, dom.notices]);
}

function buildHeadPanel(view, dom) {
  const choose = (name) => button(name === "arcs" ? "Arcs" : "Map", "", () => setOption(view, "view", name));
  dom.views = { arcs: choose("arcs"), map: choose("map") };
  dom.table = button("Table", "hs-link", () => toggleTable(view), { "aria-expanded": "false" });
  dom.cut = el("input", { type: "range", min: 30, max: 100, step: 5, "aria-label": "Cut-off in percent" });
  dom.cut.addEventListener("input", () => setOption(view, "cut", Number(dom.cut.value)));
  dom.cutOut = el("output");
  dom.scale = el(
    "select",
    { "aria-label": "Colour scale" },
    Object.entries(SCALES).map(([value, { label }]) => el("option", { value, text: label })),
  );
  dom.scale.addEventListener("change", () => setOption(view, "scale", dom.scale.value));
  dom.cutLabel = el("label", {}, [
    el("span", { className: "hs-long", text: "Strongest arcs covering" }),
    el("span", { className: "hs-short", text: "Arcs covering" }),
    dom.cut,
    dom.cutOut,
  ]);
  dom.legendEnd = el("span");
  dom.legendStart = el("span");
  dom.legend = el("span", { className: "hs-legend" }, [dom.legendStart, el("i"), dom.legendEnd]);
  dom.panes = el("div", { className: "hs-panes" });
  dom.tableBox = el("div", { className: "hs-table hs-aside", role: "region", "aria-label": "The row as a table" });
  dom.wait = el("p", { className: "hs-wait", role: "status", hidden: true });
  dom.stage = el("div", { className: "hs-panel hs-c" }, [
    el("span", { className: "hs-switch", role: "group", "aria-label": "Picture" }, Object.values(dom.views)),
    el("div", { className: "hs-bar hs-choices" }, [dom.cutLabel, dom.legend, dom.scale]),
    dom.table,
    dom.panes,
    dom.tableBox,
    dom.wait,
  ]);
  return dom.stage;
}

function buildHeadsPanel(view, dom) {
  dom.resting = el("p");
  dom.hide = button("", "hs-link", () => setOption(view, "hide", !view.options.hide));
  dom.renorm = el("input", { type: "checkbox" });
  dom.renorm.addEventListener("change", () => setOption(view, "renorm", dom.renorm.checked));
  dom.renormLabel = el("label", {}, [dom.renorm, "scale the rest to 100 %"]);
  dom.layerName = el("b");
  dom.layerNav = el("div", { className: "hs-layer-nav" }, [
    button("‹", "", () => step(view, { layer: -1 }), { "aria-label": "Previous layer" }),
    dom.layerName,
    button("›", "", () => step(view, { layer: 1 }), { "aria-label": "Next layer" }),
  ]);
  dom.gridTop = el("div", { className: "hs-grid-top", "aria-hidden": "true" });
  dom.grid = el("canvas", { role: "img" });
  dom.gridSpacer = el("div", {}, [dom.gridTop, dom.grid]);
  dom.gridScroll = el("div", { className: "hs-scroll hs-grid" }, [dom.gridSpacer]);
  dom.gridScroll.addEventListener("scroll", () => repaint(view), { passive: true });
  dom.grid.addEventListener("pointermove", (event) => onGridMove(view, event));
  dom.grid.addEventListener("pointerleave", () => preview(view, null));
  dom.grid.addEventListener("click", (event) => onGridClick(view, event));
  dom.heads = el("div", { className: "hs-panel hs-e" }, [
    el("div", { className: "hs-bar" }, [dom.resting, dom.renormLabel, dom.hide]),
    dom.layerNav,
    dom.gridScroll,
  ]);
  return dom.heads;
}

function buildStrip(view, dom) {
  dom.recipeOf = el("p");
  dom.stack = el("div", { className: "hs-stack", role: "img" });
  dom.checks = button("", "hs-link", () => toggleChecks(view), { "aria-expanded": "false" });
  dom.why = button("", "hs-link", () => {
    lockHere(view);
    view.ask?.("ask", { action: "why" });
  });
  dom.twin = button("Untrained twin", "hs-link", () => {
    view.ask?.("ask", { action: "twin", on: view.scene.second?.role !== "twin" });
  });
  dom.checkList = el("ul");
  dom.pop = el("div", { className: "hs-pop", role: "region", "aria-label": "Checks", hidden: true }, [
    el("b", { text: "Checks on this very picture" }),
    dom.checkList,
  ]);
  dom.strip = el("details", { className: "hs-f" }, [
    el("summary", { text: "What the word becomes, checks, twin" }),
    el("div", { className: "hs-recipe" }, [dom.recipeOf, dom.stack, dom.checks, dom.why, dom.twin]),
    dom.pop,
  ]);
  return dom.strip;
}

/** Everything that depends on the scene, the size or the theme, but not on the selection. */
function dressUp(view) {
  const { root, strip, swap, twin, why, checks, notices } = view.dom;
  const width = root.clientWidth;
  if (!view.scene || !width) return;
  root.dataset.theme = isDark(view) ? "dark" : "light";
  root.dataset.cards = view.scene.cards.length;
  const size = width >= 900 ? "wide" : width < 700 ? "phone" : "middle";
  if (root.dataset.size !== size) {
    root.dataset.size = size;
    strip.open = size !== "phone";
  }
  const rows = clamp(view.scene.main.size, 6, 12);
  root.style.setProperty("--hs-c-height", `${size === "phone" ? rows * 44 + 172 : 480}px`);
  if (!view.palette) {
    view.palette = readPalette(view);
    view.thumbs.clear();
  }
  swap.hidden = !view.scene.swap || !view.ask;
  swap.textContent = view.scene.swap ?? "";
  twin.hidden = why.hidden = !view.ask;
  twin.setAttribute("aria-pressed", String(view.scene.second?.role === "twin"));
  checks.hidden = view.scene.checks.length === 0;
  notices.hidden = view.scene.notices.length === 0;
  notices.textContent = view.scene.notices.join(" ");
  dressChecks(view);
}

function dressChecks(view) {
  const { checks, checkList } = view.dom;
  const failed = view.scene.checks.filter(([, , good]) => !good).length;
  const total = view.scene.checks.length;
  checks.className = `hs-link ${failed ? "hs-bad" : "hs-good"}`;
  checks.textContent = failed
    ? `✗ ${failed} of ${total} checks failed`
    : `✓ ${total} ${total === 1 ? "check" : "checks"} passed`;
  checkList.replaceChildren(
    ...view.scene.checks.map(([name, value, good]) =>
      el("li", {}, [
        el("b", { className: good ? "hs-good" : "hs-bad", text: good ? "✓" : "✗" }),
        el("span", { text: name }),
        el("span", { className: "hs-small", text: value }),
      ]),
    ),
  );
}

function buildCards(view) {
  const { cards } = view.dom;
  cards.hidden = view.scene.cards.length === 0;
  cards.replaceChildren(...view.scene.cards.map((card) => buildCard(view, card)));
  const average = view.scene.average && buildAverage(view.scene);
  if (average && view.scene.cards.length) cards.append(average);
}

function buildCard(view, card) {
  const { main } = view.scene;
  const row = rawRow(main, card.layer, card.head, card.query);
  const top = largest(row);
  const meter = el("span", { className: "hs-meter" }, [el("i"), el("b", { text: percent(row[top]) })]);
  meter.style.setProperty("--share", `${row[top] * 100}%`);
  const press = () => select(view, { layer: card.layer, head: card.head, query: card.query, key: null });
  const node = el("button", { type: "button", className: "hs-card", on: { click: press } }, [
    el("span", { className: "hs-card-top" }, [
      el("b", { text: card.title }),
      el("span", { className: "hs-small", text: `L${card.layer} H${card.head}` }),
    ]),
    el("span", { className: "hs-answer" }, [
      el("span", { className: "hs-fact" }, [
        word(main.labels[card.query], "hs-query"),
        " looks at ",
        word(main.labels[top], "hs-key"),
      ]),
      meter,
    ]),
    el("span", { className: "hs-evidence", text: card.evidence }),
  ]);
  node.dataset.card = card.id;
  return node;
}

/** The fourth card: what is left when one head has to give the mean of all answers. */
function buildAverage(scene) {
  const { main, average } = scene;
  const mean = new Float32Array(main.size);
  for (const [layer, head] of average.heads) {
    const row = rawRow(main, layer, head, average.query);
    for (let key = 0; key < main.size; key += 1) mean[key] += row[key] / average.heads.length;
  }
  const [first, second = first] = strongest(mean, 100, 2);
  const count = ["no", "one", "two", "three", "four"][average.heads.length] ?? average.heads.length;
  const share = (key) => ` ${Math.round(mean[key] * 100)}`;
  return el("div", { className: "hs-average" }, [
    el("b", { text: `Average of the ${count}` }),
    el("span", { className: "hs-fact" }, [
      word(main.labels[average.query], "hs-query"),
      ": ",
      word(main.labels[first], "hs-key"),
      `${share(first)}, `,
      word(main.labels[second], "hs-key"),
      `${share(second)}: blurred`,
    ]),
    el("span", {
      className: "hs-evidence",
      text: `one head would have to answer all ${count} at once; concat keeps ${count} answers apart`,
    }),
  ]);
}

/** One pane per trace: scrolling box, canvas that stays in view, and the words as real elements. */
function buildPanes(view) {
  const old = view.panes;
  if (old.length === view.scene.traces.length) {
    view.scene.traces.forEach((trace, index) => dressPane(old[index], trace, view));
    return;
  }
  view.panes = view.scene.traces.map((trace, index) => dressPane(buildPane(view, index), trace, view));
  view.dom.panes.replaceChildren(...view.panes.map((pane) => pane.node));
}

function buildPane(view, index) {
  const pane = { index, words: new Map(), drawn: null, target: null };
  pane.title = el("p", { className: "hs-pane-title" });
  pane.queryTitle = el("span");
  pane.keyTitle = el("span");
  pane.titles = el("div", { className: "hs-titles" }, [pane.queryTitle, pane.keyTitle]);
  pane.canvas = el("canvas", { "aria-hidden": "true" });
  pane.spacer = el("div", {}, [pane.canvas]);
  pane.scroll = el("div", { className: "hs-scroll", tabindex: "0", role: "application" }, [pane.spacer]);
  pane.scroll.addEventListener("scroll", () => repaint(view), { passive: true });
  pane.scroll.addEventListener("pointermove", (event) => onPaneMove(view, pane, event));
  pane.scroll.addEventListener("pointerleave", () => preview(view, null));
  pane.scroll.addEventListener("click", (event) => onPaneClick(view, pane, event));
  pane.node = el("div", { className: "hs-pane" }, [pane.title, pane.titles, pane.scroll]);
  return pane;
}

function dressPane(pane, trace, view) {
  const sameWords = pane.trace && pane.trace.size === trace.size;
  if (!sameWords) Object.assign(pane, { drawn: null, target: null });
  pane.trace = trace;
  clearWords(pane);
  pane.title.hidden = view.scene.traces.length < 2;
  pane.scroll.setAttribute(
    "aria-label",
    "The head. Arrow up and down: word. Left and right: head. Page up and down: layer. Enter locks, Escape releases.",
  );
  return pane;
}

// ---------------------------------------------------------------------------------------------------------------
// Colours

function readPalette(view) {
  const { read, readAll, font } = readStyle(view);
  const colours = scaleOf(read, "w");
  const scale = Uint32Array.from(colours, ([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red);
  const inks = readAll(["query", "key", "key-fill", "text", "muted", "line", "void"]);
  const groups = ["a", "b", "c"].map((letter) => read(`group-${letter}`));
  return { scale, css: colours.map(asCss), inks, groups, font };
}

/** Where a weight sits on the colour scale, 0 to 255. */
function scaled(weight, scale, rowTop) {
  if (scale === "bright") return Math.round(255 * Math.sqrt(weight));
  if (scale === "row") return rowTop > 0 ? Math.round((255 * weight) / rowTop) : 0;
  if (scale === "log") return weight <= 0.001 ? 0 : Math.round(255 * (1 + Math.log10(weight) / 3));
  return Math.round(255 * Math.min(1, weight));
}

// ---------------------------------------------------------------------------------------------------------------
// Painting

function repaint(view) {
  if (!view.frame) view.frame = requestAnimationFrame(() => paint(view));
}

function paint(view) {
  view.frame = 0;
  if (!view.scene || !view.dom.root.clientWidth || !view.dom.root.isConnected) return;
  if (!view.palette) dressUp(view);
  const focus = focusOf(view);
  const row = shownRow(view, view.scene.main, focus.layer, focus.head, focus.query);
  const key = focus.key ?? row?.top ?? 0;
  paintHeadline(view, focus, row, key);
  paintCards(view, focus);
  paintControls(view, focus, row);
  const moving = view.panes.map((pane) => paintPane(view, pane, focus)).some(Boolean);
  paintGrid(view, focus);
  paintStrip(view, focus, row);
  scheduleTable(view);
  report(view, focus, row, key);
  if (moving) repaint(view);
}

/** The figures tests and other scripts may read. */
function report(view, focus, row, key) {
  const { root } = view.dom;
  view.painted += 1;
  Object.assign(root.dataset, {
    layer: focus.layer,
    head: focus.head,
    query: focus.query,
    key: row ? key : "",
    percent: row ? percent(row.weights[key]).replace(" %", "") : "",
    locked: String(Boolean(view.lock)),
    arcs: row ? strongest(row.weights, view.options.cut).length : 0,
    hiddenShare: row ? row.hiddenShare.toFixed(3) : "",
    ...view.options,
    painted: view.painted,
  });
}

function paintHeadline(view, focus, row, key) {
  const { main } = view.scene;
  const { sentence, where, lock } = view.dom;
  const answer = row ? [word(main.labels[key], "hs-key"), `: ${percent(row.weights[key])}`] : ["…"];
  sentence.replaceChildren(word(main.labels[focus.query], "hs-query"), " looks at ", ...answer);
  const hidden = row && view.options.hide ? ` · ${percent(row.hiddenShare)} of this row is hidden` : "";
  where.textContent = `Layer ${focus.layer}, head ${focus.head} (numbered from 0)${hidden}`;
  lock.hidden = !view.lock;
  if (view.lock) lock.textContent = `locked: L${view.lock.layer} H${view.lock.head} ✕`;
}

/** Said after a key press, a click or a tap; hovering stays silent. */
function speak(view) {
  const focus = focusOf(view);
  const { main } = view.scene;
  const row = shownRow(view, main, focus.layer, focus.head, focus.query);
  const key = focus.key ?? row?.top ?? 0;
  const where = `Layer ${focus.layer}, head ${focus.head}, ${main.labels[focus.query]}`;
  const value = row ? percent(row.weights[key]).replace("<", "under").replace("%", "percent") : "";
  view.dom.spoken.textContent = row ? `${where} to ${main.labels[key]}, ${value}` : `${where}, loading`;
}

function paintCards(view, focus) {
  view.scene.cards.forEach((card, index) => {
    const on = card.layer === focus.layer && card.head === focus.head && card.query === focus.query;
    const node = view.dom.cards.children[index];
    const wasOn = node.getAttribute("aria-pressed") === "true";
    node.setAttribute("aria-pressed", String(on));
    if (on && !wasOn) swipeTo(view.dom.cards, node);
  });
}

/** On a phone the cards are a row to swipe: brings the chosen one to its left edge. */
function swipeTo(cards, node) {
  if (cards.scrollWidth > cards.clientWidth) cards.scrollLeft = node.offsetLeft - cards.offsetLeft;
}

function paintControls(view, focus, row) {
  const { dom, options } = view;
  const { main } = view.scene;
  for (const [name, node] of Object.entries(dom.views)) {
    node.setAttribute("aria-pressed", String(options.view === name));
  }
  dom.cutLabel.hidden = options.view === "map";
  dom.cut.value = options.cut;
  dom.cutOut.textContent = `${options.cut} %`;
  dom.scale.value = options.scale;
  dom.scale.title = SCALES[options.scale].title;
  dom.legendStart.textContent = options.scale === "log" ? ".001" : "0";
  dom.legendEnd.textContent = options.scale === "row" ? "row’s largest" : "1";
  dom.renorm.checked = options.renorm;
  dom.renormLabel.hidden = !options.hide;
  dom.layerName.textContent = `Layer ${focus.layer}`;
  paintResting(view, focus);
  paintWait(view, focus, row);
  const all = `Small maps of all heads, ${main.layers} layers of ${main.heads}`;
  dom.grid.setAttribute("aria-label", `${all}; layer ${focus.layer}, head ${focus.head} chosen`);
}

function paintResting(view, focus) {
  const { dom, options } = view;
  const { main } = view.scene;
  const share = main.resting[focus.layer][focus.head][0];
  const columns = restingColumns(main, focus.layer, focus.head);
  const places = [...columns.keys()].filter((column) => columns[column]);
  const all = `All ${main.layers * main.heads} heads.`;
  dom.hide.hidden = places.length === 0;
  dom.hide.textContent = options.hide ? "Show it" : "Hide it";
  if (!places.length) {
    dom.resting.textContent = `${all} This one has no resting place.`;
    return;
  }
  const names = shortList(places.map((place) => main.labels[place]));
  const shade = isDarkNow(view) ? "Bright" : "Dark";
  const edge = places[0] === 0 ? `${shade} left edge` : `${shade} columns`;
  dom.resting.textContent = `${all} ${options.hide ? "Hidden" : edge}: resting on ${names}, ${percent(share)} here.`;
}

function isDarkNow(view) {
  return view.dom.root.dataset.theme === "dark";
}

function paintWait(view, focus, row) {
  const { wait } = view.dom;
  wait.hidden = Boolean(row);
  if (row) return;
  wait.textContent = view.setState
    ? `Fetching layer ${focus.layer}, head ${focus.head} …`
    : `Layer ${focus.layer}, head ${focus.head} was left out of this file to keep it small.`;
}

// ---------------------------------------------------------------------------------------------------------------
// C: one pane

/** As fine as the screen's pixels also where the page is presented. */
function enlargedContext(canvas, width, height) {
  return sizedContext(canvas, width, height, enlargement(canvas));
}

/** Draws a pane; true while an arc is still moving. */
function paintPane(view, pane, wholeFocus) {
  const focus = focusIn(pane.trace, wholeFocus);
  const row = shownRow(view, pane.trace, focus.layer, focus.head, focus.query);
  if (view.scene.traces.length > 1) paintPaneTitle(view, pane, focus, row);
  pane.titles.hidden = view.options.view === "map";
  if (view.options.view === "map") return paintMap(view, pane, focus, row);
  return paintArcs(view, pane, focus, row);
}

function paintPaneTitle(view, pane, focus, row) {
  const { trace } = pane;
  const names = { main: "Trained", twin: "Untrained twin: random weights" };
  const comparing = view.scene.second.role === "compare";
  const name = comparing ? trace.text : names[trace.role];
  const key = focus.key ?? row?.top ?? 0;
  const link = [word(trace.labels[focus.query], "hs-query"), " → ", word(trace.labels[key], "hs-key")];
  const fact = row ? [...link, ` ${percent(row.weights[key])}`] : [];
  pane.title.title = name;
  pane.title.replaceChildren(...fact, el("span", { className: "hs-small", text: ` · ${name}`, dir: "auto" }));
}

function arcsGeometry(view, pane) {
  const width = pane.scroll.clientWidth;
  const height = pane.scroll.clientHeight;
  const phone = view.dom.root.dataset.size === "phone";
  const narrow = width < 480;
  const least = phone ? 44 : 26;
  const rowHeight = clamp(Math.floor((height - 4) / pane.trace.size), least, Math.max(least, 44));
  const from = Math.round(width * (narrow ? 0.33 : 0.29));
  const to = Math.round(width * (narrow ? 0.56 : 0.57));
  const bars = Math.round(width * (narrow ? 0.84 : 0.77));
  const { scrollTop } = pane.scroll; // read once: after a change of style each reading lays the page out anew
  const first = Math.max(0, Math.floor(scrollTop / rowHeight) - 1);
  const last = Math.min(pane.trace.size - 1, Math.ceil((scrollTop + height) / rowHeight));
  const middle = (index) => (index + 0.5) * rowHeight - scrollTop;
  return { width, height, rowHeight, from, to, bars, narrow, first, last, middle };
}

function paintArcs(view, pane, focus, row) {
  const place = arcsGeometry(view, pane);
  pane.spacer.style.height = `${place.rowHeight * pane.trace.size}px`;
  pane.spacer.style.width = "100%";
  pane.canvas.hidden = false;
  placeTitles(pane, place);
  placeWords(view, pane, focus, row, place);
  const context = enlargedContext(pane.canvas, place.width, Math.min(place.height, place.rowHeight * pane.trace.size));
  paintOtherRows(view, pane, focus, place, context);
  if (!row) return false;
  const moving = moveArcs(view, pane, focus, row);
  paintFocusedRow(view, pane, place, context);
  return moving;
}

function placeTitles(pane, place) {
  const title = (node, letter, long, short) =>
    node.replaceChildren(el("b", { text: letter }), place.narrow ? short : long);
  title(pane.queryTitle, "QUERY", " the word that looks", " looks");
  title(pane.keyTitle, "KEY", " the words it looks at", " is looked at");
  Object.assign(pane.queryTitle.style, { right: `${place.width - place.from + 6}px`, maxWidth: `${place.from - 8}px` });
  Object.assign(pane.keyTitle.style, { left: `${place.to + 6}px`, maxWidth: `${place.width - place.to - 8}px` });
}

/** Keeps word elements for the visible rows only. */
function placeWords(view, pane, focus, row, place) {
  for (const [index, nodes] of pane.words) {
    if (index >= place.first && index <= place.last) continue;
    nodes.forEach((node) => node.remove());
    pane.words.delete(index);
  }
  const targets = new Set(row ? strongest(row.weights, view.options.cut) : []);
  for (let index = place.first; index <= place.last; index += 1) {
    const [queryWord, keyWord] = pane.words.get(index) ?? addWords(pane, index);
    const top = `${index * place.rowHeight + 1}px`;
    const height = `${place.rowHeight - 2}px`;
    const shared = { top, height, lineHeight: height, fontSize: `${clamp(place.rowHeight * 0.46, 14, 18)}px` };
    const onTheRight = { right: `${place.width - place.from + 2}px`, maxWidth: `${place.from - 6}px` };
    const onTheLeft = { left: `${place.to + 2}px`, maxWidth: `${place.bars - place.to - 8}px` };
    Object.assign(queryWord.style, shared, onTheRight);
    Object.assign(keyWord.style, shared, onTheLeft);
    mark(queryWord, "on", index === focus.query ? "query" : null);
    const chosen = focus.key ?? row?.top;
    mark(keyWord, "on", row && index === chosen ? "top" : targets.has(index) ? "target" : null);
    mark(keyWord, "masked", pane.trace.causal && index > focus.query ? "" : null);
    mark(keyWord, "resting", view.options.hide && row?.hidden[index] ? "" : null);
  }
}

function clearWords(pane) {
  pane.words.forEach((nodes) => nodes.forEach((node) => node.remove()));
  pane.words.clear();
}

function mark(node, name, value) {
  if (value === null) delete node.dataset[name];
  else node.dataset[name] = value;
}

function addWords(pane, index) {
  const text = pane.trace.labels[index];
  const make = (side) => {
    const node = el("span", { className: "hs-word", text, dir: "auto", title: text });
    node.dataset.side = side;
    node.dataset.index = index;
    if (pane.trace.isSpecial[index]) node.dataset.special = "";
    pane.spacer.append(node);
    return node;
  };
  const nodes = [make("query"), make("key")];
  pane.words.set(index, nodes);
  return nodes;
}

function drawArc(context, place, fromY, toY, width) {
  const bend = (place.to - place.from) * 0.5;
  context.lineWidth = width;
  context.beginPath();
  context.moveTo(place.from + 4, fromY);
  context.bezierCurveTo(place.from + bend, fromY, place.to - bend, toY, place.to - 4, toY);
  context.stroke();
}

/** All other visible rows, faint: each one's strongest few arcs. */
function paintOtherRows(view, pane, focus, place, context) {
  const { trace } = pane;
  context.strokeStyle = view.palette.inks.text;
  context.lineCap = "round";
  for (let query = place.first; query <= place.last; query += 1) {
    if (query === focus.query) continue;
    const row = shownRow(view, trace, focus.layer, focus.head, query);
    if (!row) return;
    for (const key of strongest(row.weights, view.options.cut, 6)) {
      const weight = row.weights[key];
      context.globalAlpha = 0.05 + 0.16 * weight;
      drawArc(context, place, place.middle(query), place.middle(key), 0.8 + 3 * weight);
    }
  }
  context.globalAlpha = 1;
}

/** Steps pane.drawn towards the focused row, so that an arrow visibly moves; true while under way. */
function moveArcs(view, pane, focus, row) {
  const goal = goalOf(view, focus, row);
  const changed = !pane.target || pane.target.label !== goal.label || !sameBytes(pane.target.arcs, goal.arcs);
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (changed) {
    pane.source = pane.drawn;
    pane.started = performance.now();
    pane.target = goal;
  }
  const done = still || !pane.source ? 1 : clamp((performance.now() - pane.started) / EASE_MS, 0.2, 1);
  pane.drawn = done === 1 ? goal : between(pane.source, goal, 1 - (1 - done) ** 2);
  return done < 1;
}

function goalOf(view, focus, row) {
  const arcs = new Float32Array(row.weights.length);
  for (const key of strongest(row.weights, view.options.cut)) arcs[key] = row.weights[key];
  return { query: focus.query, arcs, weights: row.weights, label: `${focus.query} ${view.options.cut}` };
}

function between(one, other, share) {
  const mix = (from, to) => from + (to - from) * share;
  return {
    query: mix(one.query, other.query),
    arcs: other.arcs.map((weight, key) => mix(one.arcs[key], weight)),
    weights: other.weights.map((weight, key) => mix(one.weights[key], weight)),
  };
}

function paintFocusedRow(view, pane, place, context) {
  const { query, arcs, weights } = pane.drawn;
  const { inks } = view.palette;
  context.strokeStyle = inks["key-fill"];
  context.lineCap = "round";
  const order = [...arcs.keys()].filter((key) => arcs[key] > 0.002).sort((one, other) => arcs[one] - arcs[other]);
  for (const key of order) {
    context.globalAlpha = 0.45 + 0.5 * Math.sqrt(arcs[key]);
    const thickness = 1.2 + Math.min(11, place.rowHeight * 0.3) * arcs[key];
    drawArc(context, place, place.middle(query), place.middle(key), thickness);
  }
  context.globalAlpha = 1;
  paintBars(view, pane, place, context, arcs, weights);
}

function paintBars(view, pane, place, context, arcs, weights) {
  const { inks, font } = view.palette;
  const room = place.width - place.bars - 58;
  context.font = `13.5px ${font}`;
  context.textBaseline = "middle";
  context.textAlign = place.narrow ? "right" : "left";
  for (let key = place.first; key <= place.last; key += 1) {
    const weight = weights[key];
    if (weight < 0.005) continue;
    const y = place.middle(key);
    context.globalAlpha = arcs[key] > 0 ? 1 : 0.45;
    const length = place.narrow ? 0 : Math.max(2, room * weight);
    context.fillStyle = inks["key-fill"];
    context.beginPath();
    context.roundRect(place.bars, y - 6, length, 12, 4);
    context.fill();
    context.globalAlpha = 1;
    context.fillStyle = arcs[key] > 0 ? inks.key : inks.muted;
    context.fillText(percent(weight), place.narrow ? place.width - 10 : place.bars + length + 7, y + 0.5);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// C as a map

function mapGeometry(view, pane) {
  const { scroll, trace } = pane;
  const width = scroll.clientWidth;
  const height = scroll.clientHeight;
  const phone = view.dom.root.dataset.size === "phone";
  const left = Math.round(clamp(width * 0.2, 84, 120));
  const top = 92;
  const least = phone ? 24 : 12;
  const cell = clamp(Math.floor((height - top - 8) / trace.size), least, 48);
  const wide = clamp(Math.floor((width - left - 40) / trace.size), least, Math.round(cell * 1.7));
  return { width, height, left, top, cell, wide, sideways: scroll.scrollLeft, down: scroll.scrollTop };
}

function paintMap(view, pane, focus, row) {
  const place = mapGeometry(view, pane);
  const { trace } = pane;
  const side = place.cell * trace.size;
  const across = place.wide * trace.size;
  clearWords(pane);
  pane.drawn = pane.target = null;
  pane.spacer.style.width = `${place.left + across + 36}px`;
  pane.spacer.style.height = `${place.top + side + 8}px`;
  const drawn = [Math.min(place.width, place.left + across + 36), Math.min(place.height, place.top + side + 8)];
  const context = enlargedContext(pane.canvas, ...drawn);
  context.save();
  context.beginPath();
  context.rect(place.left - 2, place.top - 2, across + 4, side + 4);
  context.clip();
  paintMapCells(view, pane, focus, place, context);
  paintCrosshair(view, focus, row, place, context, [across, side]);
  context.restore();
  paintMapLabels(view, pane, focus, row, place, context);
  return false;
}

function visible(place, size, along) {
  const down = along === "query";
  const [offset, room] = down ? [place.down, place.height - place.top] : [place.sideways, place.width - place.left];
  const unit = down ? place.cell : place.wide;
  return [Math.floor(offset / unit), Math.min(size - 1, Math.floor((offset + room) / unit))];
}

function paintMapCells(view, pane, focus, place, context) {
  const { trace } = pane;
  const { css, inks } = view.palette;
  const gap = place.cell > 16 ? 1 : 0;
  const [firstRow, lastRow] = visible(place, trace.size, "query");
  const [firstKey, lastKey] = visible(place, trace.size, "key");
  for (let query = firstRow; query <= lastRow; query += 1) {
    const row = shownRow(view, trace, focus.layer, focus.head, query);
    if (!row) return;
    const rowTop = row.weights[row.top];
    for (let key = firstKey; key <= lastKey; key += 1) {
      const blank = (trace.causal && key > query) || (view.options.hide && row.hidden[key]);
      context.fillStyle = blank ? inks.void : css[scaled(row.weights[key], view.options.scale, rowTop)];
      const x = place.left + key * place.wide - place.sideways;
      const y = place.top + query * place.cell - place.down;
      context.fillRect(x, y, place.wide - gap, place.cell - gap);
    }
  }
}

function paintCrosshair(view, focus, row, place, context, [across, side]) {
  const { inks } = view.palette;
  const key = focus.key ?? row?.top ?? 0;
  const x = place.left + key * place.wide - place.sideways;
  const y = place.top + focus.query * place.cell - place.down;
  context.lineWidth = 2;
  context.strokeStyle = inks.query;
  context.strokeRect(place.left - 1, y - 1, across + 1, place.cell + 1);
  context.strokeStyle = inks["key-fill"];
  context.strokeRect(x - 1, place.top - 1, place.wide + 1, side + 1);
  context.lineWidth = 3;
  context.strokeRect(x - 1, y - 1, place.wide + 1, place.cell + 1);
}

/** Row labels left, column labels slanted on top; thinned so that they never touch. */
function paintMapLabels(view, pane, focus, row, place, context) {
  const { trace } = pane;
  const { inks, font } = view.palette;
  const key = focus.key ?? row?.top ?? 0;
  const [everyRow, everyKey] = [Math.ceil(15 / place.cell), Math.ceil(20 / place.wide)];
  const size = clamp(place.cell * 0.42, 12, 15);
  const write = (index, ink, chosen, x, y) => {
    context.font = `${chosen ? "700 " : ""}${size}px ${font}`;
    context.fillStyle = chosen ? ink : trace.isSpecial[index] ? inks.muted : inks.text;
    context.fillText(fitted(context, trace.labels[index], place.left - 14), x, y);
  };
  context.textBaseline = "middle";
  const [firstRow, lastRow] = visible(place, trace.size, "query");
  context.textAlign = "right";
  for (let query = firstRow; query <= lastRow; query += 1) {
    const y = place.top + (query + 0.5) * place.cell - place.down;
    if (y < place.top + 2 || (query % everyRow && query !== focus.query)) continue;
    write(query, inks.query, query === focus.query, place.left - 8, y);
  }
  const [firstKey, lastKey] = visible(place, trace.size, "key");
  context.textAlign = "left";
  for (let index = firstKey; index <= lastKey; index += 1) {
    const x = place.left + (index + 0.5) * place.wide - place.sideways;
    if (x < place.left + 2 || (index % everyKey && index !== key)) continue;
    context.save();
    context.translate(x, place.top - 8);
    context.rotate(-Math.PI / 4);
    write(index, inks.key, index === key, 0, 0);
    context.restore();
  }
  context.font = `12.5px ${font}`;
  context.fillStyle = inks.muted;
  context.textAlign = "left";
  context.fillText("query (row) ↓", 8, place.top - 12);
  context.fillText("key (column) →", 8, 14);
}

// ---------------------------------------------------------------------------------------------------------------
// E: all heads

function gridGeometry(view) {
  const { gridScroll, root } = view.dom;
  const { main } = view.scene;
  const width = gridScroll.clientWidth;
  if (root.dataset.size === "phone") return phoneGrid(view, main, width);
  const height = gridScroll.clientHeight;
  const { scrollTop, scrollLeft } = gridScroll;
  const left = 52;
  const top = 20;
  const gap = 5;
  const across = Math.max(26, Math.floor((width - left - 2) / main.heads));
  const down = Math.floor((height - top - 4) / main.layers);
  const step = Math.min(across, down < 22 ? 40 : down, 72); // rows too low to read scroll instead
  const cell = step - gap;
  const wide = Math.min(across - gap, Math.round(cell * 1.5));
  return {
    left, top, cell, wide, width, height,
    spanX: across,
    fullWidth: left + across * main.heads,
    fullHeight: step * main.layers + top,
    firstLayer: Math.floor(scrollTop / step),
    lastLayer: Math.min(main.layers - 1, Math.floor((scrollTop + height - top) / step)),
    at: (layer, head) => [
      left + head * across + (across - wide) / 2 - scrollLeft,
      layer * step + gap / 2 - scrollTop,
    ],
    find: (x, y) => ({
      layer: Math.floor((y + scrollTop) / step),
      head: Math.floor((x - left + scrollLeft) / across),
    }),
  };
}

/** One layer at a time, four heads across. */
function phoneGrid(view, main, width) {
  const columns = 4;
  const step = Math.floor(width / columns);
  const cell = step - 8;
  const rows = Math.ceil(main.heads / columns);
  const { layer } = focusOf(view);
  return {
    left: 0, top: 0, cell, wide: cell, width,
    height: rows * step,
    spanX: step,
    fullWidth: width,
    fullHeight: rows * step,
    firstLayer: layer,
    lastLayer: layer,
    at: (_, head) => [(head % columns) * step + 4, Math.floor(head / columns) * step + 4],
    find: (x, y) => ({ layer, head: Math.floor(y / step) * columns + Math.floor(x / step) }),
  };
}

/** The sticky line above the grid: head numbers, or which K/V head serves which query heads. */
function buildGridTop(view) {
  const { main } = view.scene;
  view.gridLabels = main.n_kv_heads < main.heads ? kvLabels(main) : headLabels(main);
  view.dom.gridTop.replaceChildren(...view.gridLabels.map(({ node }) => node));
}

function headLabels(main) {
  return Array.from({ length: main.heads }, (_, head) => ({
    node: el("span", { text: String(head) }),
    first: head,
    last: head,
  }));
}

function kvGroups(main) {
  const groups = [];
  main.kv_of.forEach((kv, head) => {
    if (groups.at(-1)?.kv === kv) groups.at(-1).last = head;
    else groups.push({ kv, first: head, last: head });
  });
  return groups;
}

function kvLabels(main) {
  return kvGroups(main).map(({ kv, first, last }) => {
    const heads = first === last ? first : `${first}-${last}`;
    const node = el("span", { text: `KV ${kv} serves Q ${heads}`, title: `KV ${kv} serves Q ${heads}` });
    node.dataset.group = kv % 3;
    return { node, first, last };
  });
}

function paintGrid(view, focus) {
  const { dom, scene } = view;
  const place = gridGeometry(view);
  const { main } = scene;
  dom.gridSpacer.style.width = `${place.fullWidth}px`;
  dom.gridSpacer.style.height = `${place.fullHeight}px`;
  dom.gridTop.style.height = `${place.top}px`;
  dom.gridScroll.tabIndex = place.fullHeight > place.height + 1 ? 0 : -1;
  for (const { node, first, last } of view.gridLabels) {
    node.style.left = `${place.left + first * place.spanX + 1}px`;
    node.style.width = `${(last - first + 1) * place.spanX - 2}px`;
  }
  const height = Math.max(10, Math.min(place.height - place.top, place.fullHeight - place.top));
  const context = enlargedContext(dom.grid, Math.min(place.width, place.fullWidth), height);
  paintGroups(view, main, place, context, height);
  for (let layer = place.firstLayer; layer <= place.lastLayer; layer += 1) {
    paintLayerName(view, place, context, layer, layer === focus.layer);
    for (let head = 0; head < main.heads; head += 1) paintThumb(view, main, place, context, layer, head);
  }
  scene.cards.forEach((card) => outline(context, place, card, view.palette.inks["key-fill"], 2, 1));
  outline(context, place, focus, view.palette.inks.query, 3, 2.5);
}

function paintGroups(view, main, place, context, height) {
  if (main.n_kv_heads >= main.heads || !place.top) return;
  for (const { kv, first, last } of kvGroups(main)) {
    context.fillStyle = view.palette.groups[kv % 3];
    const [x] = place.at(place.firstLayer, first);
    const margin = (place.spanX - place.wide) / 2;
    context.fillRect(x - margin + 1, 0, (last - first + 1) * place.spanX - 2, height);
  }
}

function paintLayerName(view, place, context, layer, chosen) {
  if (!place.left) return;
  const [, y] = place.at(layer, 0);
  context.font = `${chosen ? "700 " : ""}12.5px ${view.palette.font}`;
  context.fillStyle = chosen ? view.palette.inks.text : view.palette.inks.muted;
  context.textBaseline = "middle";
  context.fillText(`layer ${layer}`, 2, y + place.cell / 2);
}

function paintThumb(view, main, place, context, layer, head) {
  const [x, y] = place.at(layer, head);
  const { line, void: blank } = view.palette.inks;
  context.fillStyle = line;
  context.fillRect(x - 1, y - 1, place.wide + 2, place.cell + 2);
  context.fillStyle = blank;
  context.fillRect(x, y, place.wide, place.cell);
  const thumb = thumbOf(view, main, layer, head);
  context.imageSmoothingEnabled = thumb.width > place.cell;
  context.drawImage(thumb, x, y, place.wide, place.cell);
}

function outline(context, place, { layer, head }, ink, width, room) {
  if (layer < place.firstLayer || layer > place.lastLayer) return;
  const [x, y] = place.at(layer, head);
  context.strokeStyle = ink;
  context.lineWidth = width;
  context.beginPath();
  context.roundRect(x - room, y - room, place.wide + 2 * room, place.cell + 2 * room, 3);
  context.stroke();
}

/** A head's map, one pixel per weight; kept until the data, the scale, the hiding or the theme change. */
function thumbOf(view, trace, layer, head) {
  const name = `${layer},${head}`;
  if (!view.thumbs.has(name)) view.thumbs.set(name, drawThumb(view, trace, layer, head));
  return view.thumbs.get(name);
}

function drawThumb(view, trace, layer, head) {
  const pooled = trace.pooledSide > 0;
  const side = pooled ? trace.pooledSide : trace.size;
  const thumb = document.createElement("canvas");
  thumb.width = thumb.height = side;
  const context = thumb.getContext("2d");
  const image = context.createImageData(side, side);
  const pixels = new Uint32Array(image.data.buffer);
  const blank = hiddenPixels(view, trace, layer, head, pooled, side);
  for (let query = 0; query < side; query += 1) {
    const bytes = pooled ? pooledRow(trace, layer, head, query) : rowBytes(trace, layer, head, query);
    const colours = rowColours(view, bytes, blank);
    const length = pooled && trace.causal ? query + 1 : bytes.length;
    for (let key = 0; key < length; key += 1) {
      if (!blank[key]) pixels[query * side + key] = view.palette.scale[colours[bytes[key]]];
    }
  }
  context.putImageData(image, 0, 0);
  return thumb;
}

function hiddenPixels(view, trace, layer, head, pooled, side) {
  const blank = new Uint8Array(side);
  if (!view.options.hide) return blank;
  restingColumns(trace, layer, head).forEach((rests, column) => {
    if (rests) blank[pooled ? Math.floor(column / trace.pooledBlock) : column] = 1;
  });
  return blank;
}

function pooledRow(trace, layer, head, query) {
  const side = trace.pooledSide;
  const start = trace.pooled_at + ((layer * trace.heads + head) * side + query) * side;
  return trace.body.subarray(start, start + side);
}

/** byte -> place on the colour scale, for one row (only "per row" differs between rows). */
function rowColours(view, bytes, blank) {
  const { scale } = view.options;
  if (scale !== "row") return scaleTable(scale, 1);
  let top = 0;
  for (let key = 0; key < bytes.length; key += 1) if (!blank[key] && bytes[key] > top) top = bytes[key];
  return scaleTable(scale, top);
}

const SCALE_TABLES = new Map();

function scaleTable(scale, top) {
  const name = `${scale} ${top}`;
  if (!SCALE_TABLES.has(name)) {
    const rowTop = WEIGHT_OF_BYTE[top];
    const table = WEIGHT_OF_BYTE.map((weight) => Math.min(255, scaled(weight, scale, rowTop)));
    SCALE_TABLES.set(name, Uint8Array.from(table));
  }
  return SCALE_TABLES.get(name);
}

// ---------------------------------------------------------------------------------------------------------------
// F: the recipe of the focused word

function paintStrip(view, focus, row) {
  const { dom, scene } = view;
  const name = scene.main.labels[focus.query];
  dom.recipeOf.replaceChildren("new ", word(name, "hs-query"), " =");
  if (!row) {
    dom.stack.replaceChildren();
    return;
  }
  const key = focus.key ?? row.top;
  dom.why.textContent = `Why ${percent(row.weights[key])}?`;
  const parts = recipe(scene.main, row.raw);
  dom.stack.replaceChildren(...parts.map((part, index) => segment(view, part, index, dom.stack.clientWidth)));
  const spoken = parts.map(({ weight, name: of }) => `${fraction(weight)} ${of}`).join(" + ");
  dom.stack.setAttribute("aria-label", `new ${name} = ${spoken}`);
}

/** The row's parts, strongest first, until what is left is small; the remainder is one part, so the sum stays 1. */
function recipe(trace, row) {
  const keys = strongest(row, 92, 7);
  const parts = keys.map((key) => ({ weight: row[key], name: `V(${trace.labels[key]})` }));
  const total = row.reduce((sum, weight) => sum + weight, 0);
  const rest = total - parts.reduce((sum, { weight }) => sum + weight, 0);
  return rest > 0.0005 ? [...parts, { weight: rest, name: "rest" }] : parts;
}

function segment(view, { weight, name }, index, width) {
  const dark = isDarkNow(view);
  const shades = SHADES[dark ? "dark" : "light"];
  const strength = name === "rest" ? 12 : shades[Math.min(index, shades.length - 1)];
  const node = el("span", { text: `${fraction(weight)} ${name}`, dir: "auto", title: `${fraction(weight)} ${name}` });
  node.style.width = `${weight * 100}%`;
  node.style.background = `color-mix(in srgb, var(--hs-value) ${strength}%, var(--hs-ground))`;
  node.style.color = strength > 70 ? (dark ? "#0e1117" : "#ffffff") : "var(--hs-text)";
  const room = weight * width - 14;
  if (room < 7 * node.textContent.length) node.textContent = room < 24 ? "" : fraction(weight);
  return node;
}

// ---------------------------------------------------------------------------------------------------------------
// The table twin

function scheduleTable(view) {
  const focus = focusOf(view);
  const name = [focus.layer, focus.head, focus.query, view.options.hide, view.options.renorm].join(" ");
  if (name === view.tableName && view.tableScene === view.scene) return;
  clearTimeout(view.tableTimer);
  view.tableTimer = setTimeout(() => {
    view.tableName = name;
    view.tableScene = view.scene;
    fillTable(view, focusOf(view));
  }, 120);
}

function fillTable(view, focus) {
  const { main } = view.scene;
  const row = shownRow(view, main, focus.layer, focus.head, focus.query);
  if (!row) return;
  const caption = el("caption", {}, [
    word(main.labels[focus.query], "hs-query"),
    ` looks at, in layer ${focus.layer}, head ${focus.head}`,
  ]);
  const head = ["Position", "Key", "Share"].map((text) => el("th", { scope: "col", text }));
  const lines = main.labels.map((label, key) =>
    el("tr", {}, [
      el("td", { text: String(key) }),
      el("th", { scope: "row", text: label, dir: "auto" }),
      el("td", { text: tableValue(view, main, focus, row, key) }),
    ]),
  );
  view.dom.tableBox.replaceChildren(
    el("table", {}, [caption, el("thead", {}, [el("tr", {}, head)]), el("tbody", {}, lines)]),
  );
}

function tableValue(view, trace, focus, row, key) {
  if (trace.causal && key > focus.query) return "masked";
  if (view.options.hide && row.hidden[key]) return `hidden (${percent(row.raw[key])})`;
  return percent(row.weights[key]);
}

function toggleTable(view) {
  const { table, tableBox } = view.dom;
  const open = tableBox.classList.toggle("hs-aside") === false;
  table.setAttribute("aria-expanded", String(open));
  tableBox.tabIndex = open ? 0 : -1;
}

function toggleChecks(view) {
  const { checks, pop } = view.dom;
  pop.hidden = !pop.hidden;
  checks.setAttribute("aria-expanded", String(!pop.hidden));
}

// ---------------------------------------------------------------------------------------------------------------
// Hints of the first visit

function showHints(view) {
  const { root, hints, swap } = view.dom;
  const seen = seenHints();
  const due = Object.entries(HINT_TEXTS).filter(([name]) => !seen.has(name) && !(name === "swap" && swap.hidden));
  const shown = view.scene.hints ? due : [];
  hints.hidden = shown.length === 0;
  root.dataset.hints = shown.length;
  hints.replaceChildren(...shown.map(([name, text]) => buildHint(view, name, text)));
}

function buildHint(view, name, text) {
  const close = button("✕", "", () => dismiss(view, name), { "aria-label": `Close the hint: ${text}` });
  return el("div", { className: "hs-hint" }, [el("span", { text }), close]);
}

function seenHints() {
  return new Set((readStore("localStorage", HINTS) ?? "").split(",").filter(Boolean));
}

function dismiss(view, name) {
  writeStore("localStorage", HINTS, [...seenHints().add(name)].join(","));
  showHints(view);
  repaint(view);
}

// ---------------------------------------------------------------------------------------------------------------
// Changing the selection

function preview(view, change) {
  if (!change && !view.peek) return;
  view.peek = change;
  repaint(view);
}

/** Moves the view for good; click, card and tap also lock. */
function select(view, change, { locking = true } = {}) {
  Object.assign(view.at, change);
  view.peek = null;
  clampSelection(view);
  remember(view);
  fetchIfNeeded(view);
  if (locking) lockHere(view);
  speak(view);
  repaint(view);
}

function lockHere(view) {
  setLock(view, lockAt(view, view.at));
}

/** The cell to lock: its own key, or the one looked at most. null outside of the sentence. */
function lockAt(view, { layer, head, query, key }) {
  const { main } = view.scene;
  if (layer >= main.layers || head >= main.heads || query >= main.size) return null;
  const row = shownRow(view, main, layer, head, query);
  return { layer, head, query, key: key ?? row?.top ?? null };
}

/** Sent up only when it changed. */
function setLock(view, lock) {
  const names = ["layer", "head", "query", "key"];
  const same = names.every((name) => view.lock?.[name] === lock?.[name]);
  view.lock = lock;
  if (!same) view.setState?.("lock", lock);
}

function release(view) {
  view.peek = null;
  view.at.key = null;
  setLock(view, null);
  repaint(view);
}

function setOption(view, name, value) {
  view.options[name] = value;
  if (name === "hide" || name === "scale" || name === "renorm") view.thumbs.clear();
  remember(view);
  repaint(view);
}

/** Asks, once, for a layer or a head that did not fit into the message. */
function fetchIfNeeded(view) {
  const { main } = view.scene;
  const { layer, head } = view.at;
  if (isLoaded(main, layer, head)) return;
  const layerIsHere = main.full.some(([sent]) => sent === layer);
  const wanted = `${layer},${layerIsHere ? head : "all"} of ${memoryKey(view.scene)}`;
  if (view.awaited === wanted) return;
  view.awaited = wanted;
  if (layerIsHere) view.ask?.("ask", { action: "head", layer, head });
  else view.setState?.("layer", layer);
}

function step(view, { layer = 0, head = 0, query = 0 }) {
  const { main } = view.scene;
  const { at } = view;
  select(
    view,
    {
      layer: clamp(at.layer + layer, 0, main.layers - 1),
      head: clamp(at.head + head, 0, main.heads - 1),
      query: clamp(at.query + query, 0, main.size - 1),
      key: null,
    },
    { locking: false },
  );
  showSelection(view);
}

/** Scrolls the chosen word and the chosen head into their boxes. */
function showSelection(view) {
  const [pane] = view.panes;
  const mapped = view.options.view === "map";
  const unit = mapped ? mapGeometry(view, pane).cell : arcsGeometry(view, pane).rowHeight;
  scrollInto(pane.scroll, view.at.query * unit, unit, mapped ? 92 : 0);
  const grid = view.dom.gridScroll;
  const place = gridGeometry(view);
  if (!place.top) return;
  const [, y] = place.at(view.at.layer, view.at.head);
  scrollInto(grid, y + grid.scrollTop, place.cell, place.top);
}

function scrollInto(box, at, size, above) {
  const room = box.clientHeight - above;
  if (at < box.scrollTop) box.scrollTop = at;
  else if (at + size > box.scrollTop + room) box.scrollTop = at + size - room;
}

// ---------------------------------------------------------------------------------------------------------------
// Pointer and keyboard

/** What lies under the pointer in a pane: {query} or {key}, both in the map, or null. */
function underPointer(view, pane, event) {
  const [x, y] = pointIn(pane.scroll, event);
  if (view.options.view === "map") {
    const place = mapGeometry(view, pane);
    const query = Math.floor((y - place.top + place.down) / place.cell);
    const key = Math.floor((x - place.left + place.sideways) / place.wide);
    const inside = query >= 0 && key >= 0 && query < pane.trace.size && key < pane.trace.size;
    return inside && x > place.left && y > place.top ? { query, key } : null;
  }
  const place = arcsGeometry(view, pane);
  const index = Math.floor((y + pane.scroll.scrollTop) / place.rowHeight);
  if (index < 0 || index >= pane.trace.size) return null;
  if (x < place.from) return { query: index, key: null };
  return x > place.to ? { key: index } : null;
}

function onPaneMove(view, pane, event) {
  if (event.pointerType === "touch") return;
  preview(view, underPointer(view, pane, event));
}

/** A click locks. A word of the key column becomes the target first, and the looking word at a second click. */
function onPaneClick(view, pane, event) {
  const found = underPointer(view, pane, event);
  if (!found) return;
  const again = found.query === undefined && view.at.key === found.key;
  select(view, again ? { query: found.key, key: null } : found);
}

function gridTarget(view, event) {
  const { layer, head } = gridGeometry(view).find(...pointIn(view.dom.grid, event));
  const { main } = view.scene;
  const inside = layer >= 0 && head >= 0 && layer < main.layers && head < main.heads;
  return inside ? { layer, head, key: null } : null;
}

function onGridMove(view, event) {
  if (event.pointerType === "touch") return;
  const target = gridTarget(view, event);
  preview(view, target && isLoaded(view.scene.main, target.layer, target.head) ? target : null);
}

function onGridClick(view, event) {
  const target = gridTarget(view, event);
  if (target) select(view, target);
}

const MOVES = {
  ArrowUp: { query: -1 },
  ArrowDown: { query: 1 },
  ArrowLeft: { head: -1 },
  ArrowRight: { head: 1 },
  PageUp: { layer: -1 },
  PageDown: { layer: 1 },
  Home: { query: -Infinity },
  End: { query: Infinity },
};

function onKey(view, event) {
  if (!view.scene || event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.composedPath()[0];
  if (event.key === "Escape") {
    escape(view);
    return;
  }
  if (target.matches("input, select") || view.dom.tableBox.contains(target)) return;
  if (event.key === "Enter" && target.matches(".hs-scroll")) {
    event.preventDefault();
    select(view, {});
    return;
  }
  const vertical = { ArrowUp: { layer: -1 }, ArrowDown: { layer: 1 } };
  const move = (event.shiftKey && vertical[event.key]) || MOVES[event.key];
  if (!move) return;
  event.preventDefault();
  view.peek = null;
  step(view, move);
}

function escape(view) {
  const { pop, tableBox } = view.dom;
  if (!pop.hidden) toggleChecks(view);
  else if (!tableBox.classList.contains("hs-aside")) toggleTable(view);
  else release(view);
}
