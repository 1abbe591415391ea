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
