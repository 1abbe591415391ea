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
