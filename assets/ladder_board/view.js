// The ladder board: one real model on every rung, its quality, heads and answers beside what it caches.
//
// One Streamlit Components-v2 component. It draws one binary message (its layout: attention/plots/ladder_board.py)
// that holds every rung, and keeps its own state on parentElement: moving a slider asks the server for nothing.
//
// Keyboard: the sliders are the browser's own; on the maps the arrow keys move the marked cell.

const NAME = "ladder board";
const MAGIC = "HSL1";
const OWN = "l.";
const MEMORY = "__headscope_ladder";
const STORE = "headscope.ladder";
const FAMILIES = ["share", "latent"];
const WEIGHT_STEPS = 10_000; // as in ladder_board.py
const SHIPPED = "shipped";
const SVG = "http://www.w3.org/2000/svg";
const INKS = {
  mean: "averaged", aligned: "aligned", healed: "healed", whitened: "latent",
  shipped: "text", "latent healed": "latent-healed",
};
const SAME_DIGITS = 4;
const SLIDE = { chart: 250, map: 150, maps: 3 }; // heights that fit a slide, and how many maps stand on one
const SHORT = { mean: "averaged", aligned: "aligned", healed: "healed", whitened: "latent", plain: "of the weights" };

/**
 * Draws, or redraws, the board in component.parentElement; returns the clean-up.
 * @param {{data: Uint8Array, parentElement: Element}} component
 */
export default function ladderBoard(component) {
  const host = component.parentElement;
  const view = host[MEMORY] ?? mount(host, atFirst());
  receive(view, component.data, dressUp);
  return () => takeDown(view);
}

// ---------------------------------------------------------------------------------------------------------------
// Life of the view

function atFirst() {
  return {
    message: null, // the bytes drawn
    scene: null, // the decoded message
    way: { share: "mean", latent: "whitened" },
    at: { share: null, latent: null }, // each slider's stop, by key
    active: "share", // the slider moved last: where "you are here" points
    all: false, // whether the chart draws every way measured
    cell: null, // [query, key] marked in the maps, or null: where sharing changed most
    painted: 0,
  };
}

/** Takes a new scene in place: on the same model both sliders stay, on another they start anew. */
function adopt(view, scene) {
  const before = view.scene;
  const sameModel = before?.model === scene.model;
  view.scene = scene;
  view.cell = null;
  if (!sameModel) {
    begin(view);
    if (canRemember()) {
      const asked = parametersOf(window.location.search);
      const kept = storedParameters();
      if (before === null && asked.size) recall(view, asked);
      else if (kept.get("of") === scene.model) recall(view, kept);
    }
  }
  settle(view);
  if (before !== null && !sameModel) remember(view);
  view.dom.problem.hidden = true;
  view.dom.body.hidden = false;
  buildWays(view);
  buildGroups(view);
  dressUp(view);
}

/** The stops and ways a scene opens with. */
function begin(view) {
  Object.assign(view.at, view.scene.start);
  Object.assign(view.way, { share: "mean", latent: "whitened" });
}

/** Takes the state of the address, which a teacher's board has put there; what it leaves out is as at the start. */
function follow(view) {
  begin(view);
  recall(view, parametersOf(window.location.search));
  redraw(view);
}

function redraw(view) {
  settle(view);
  buildWays(view);
  paint(view);
}

/** Puts ways and stops back into what this scene has. */
function settle(view) {
  for (const family of FAMILIES) {
    if (!waysOf(view.scene, family).some(([way]) => way === view.way[family])) {
      view.way[family] = family === "share" ? "mean" : "whitened";
    }
    const stops = stopsOf(view, family);
    if (!stops.some((rung) => rung.key === view.at[family])) {
      view.at[family] = nearest(stops, Number.parseInt(view.at[family], 10) || view.scene.full).key;
    }
  }
}

function listen(view) {
  const { root, maps, ways, sliders, everything, equal } = view.dom;
  // On a slide of their own the maps come into sight while the board keeps its size.
  watchWindow(view, [root, maps], { resized: dressUp, recalled: redraw });
  for (const family of FAMILIES) {
    const moved = () => moveTo(view, family, stopsOf(view, family)[Number(sliders[family].value)].key);
    listenTo(view, sliders[family], "input", moved);
    listenTo(view, ways[family], "change", () => chooseWay(view, family, ways[family].value));
  }
  listenTo(view, everything, "change", () => {
    view.all = everything.checked;
    changed(view);
  });
  listenTo(view, equal, "click", () => {
    const [family, rung] = evenedOut(view);
    moveTo(view, family, rung.key);
    sliders[family].focus();
  });
  listenTo(view, maps, "keydown", (event) => onMapKey(view, event));
}

function moveTo(view, family, key) {
  view.at[family] = key;
  view.active = family;
  changed(view);
}

/** Another way of sharing keeps the size as near as it has one. */
function chooseWay(view, family, way) {
  const { numbers } = current(view, family);
  view.way[family] = way;
  view.at[family] = nearest(stopsOf(view, family), numbers).key;
  view.active = family;
  changed(view);
}

function changed(view) {
  paint(view);
  remember(view);
}
