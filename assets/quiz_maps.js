// Small maps of heads to choose from: every map is one button.
//
// One Streamlit Components-v2 component. It draws what Python sends (attention/plots/quiz_maps.py) and answers with one
// trigger, "pick" {place}. Which map is right is not among the data before the question is answered.

const MEMORY = "__headscope_quiz_maps";
const EDGE = 2; // pixels between a map and its frame
const NAMES = 64; // pixels left of and above a map for the two words asked about

/**
 * Draws, or redraws, the maps in component.parentElement; returns the clean-up.
 * @param {{data: object, parentElement: Element, setTriggerValue?: Function}} component
 */
export default function quizMaps(component) {
  const host = component.parentElement;
  const view = host[MEMORY] ?? (host[MEMORY] = createView(host));
  view.answer = component.setTriggerValue ?? null;
  view.data = component.data;
  build(view);
  return () => {
    view.watcher.disconnect();
    view.root.remove();
    delete host[MEMORY];
  };
}

function createView(host) {
  const root = document.createElement("div");
  root.className = "qm";
  root.setAttribute("role", "group");
  host.appendChild(root);
  const view = { root, data: null, answer: null, buttons: [] };
  view.watcher = new ResizeObserver(() => view.buttons.forEach((button) => paint(view, button)));
  view.watcher.observe(root);
  return view;
}

/** Buttons are kept while there are as many: the one in focus stays in focus. */
function build(view) {
  const { maps, label } = view.data;
  view.root.setAttribute("aria-label", label);
  if (view.buttons.length !== maps.length) {
    view.buttons = maps.map((_, place) => makeButton(view, place));
    view.root.replaceChildren(...view.buttons);
  }
  for (const button of view.buttons) dress(view, button);
}

function makeButton(view, place) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "qm-map";
  button.dataset.place = place;
  const name = document.createElement("span");
  name.className = "qm-name";
  button.append(document.createElement("canvas"), name);
  button.addEventListener("click", () => {
    if (!view.data.answered) view.answer?.("pick", { place });
  });
  return button;
}

function dress(view, button) {
  const { maps, answered } = view.data;
  const map = maps[button.dataset.place];
  button.querySelector(".qm-name").textContent = map.name;
  button.setAttribute("aria-label", `${map.name}. ${map.words}`);
  button.setAttribute("aria-pressed", map.chosen);
  button.setAttribute("aria-disabled", answered);
  button.dataset.right = map.right;
  button.dataset.wrong = map.wrong;
  paint(view, button);
}

function paint(view, button) {
  const { maps, mark, ink } = view.data;
  const map = maps[button.dataset.place];
  const canvas = button.querySelector("canvas");
  const width = Math.floor(button.clientWidth) - 2 * EDGE;
  if (width < 1) return;
  const left = mark ? NAMES : 0;
  const top = mark ? 20 : 0;
  const cell = Math.max(1, Math.floor((width - left) / map.side));
  const size = [left + cell * map.side, top + cell * map.side];
  const sharp = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = size.map((length) => Math.round(length * sharp));
  [canvas.style.width, canvas.style.height] = size.map((length) => `${length}px`);
  const pen = canvas.getContext("2d");
  pen.scale(sharp, sharp);
  map.cells.forEach((colour, flat) => {
    if (!colour) return; // hidden by the mask
    pen.fillStyle = colour;
    pen.fillRect(left + (flat % map.side) * cell, top + Math.floor(flat / map.side) * cell, cell - 0.5, cell - 0.5);
  });
  if (mark) name(pen, mark, ink, { left, top, cell, side: map.side });
}

/** The row's word at the left, the column's word above, and a thin frame round both lines. */
function name(pen, mark, ink, { left, top, cell, side }) {
  pen.font = "600 13px 'Source Sans', system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.fillStyle = ink.query;
  pen.textAlign = "end";
  pen.fillText(mark.query, left - 5, top + (mark.row + 0.5) * cell, left - 6);
  pen.fillStyle = ink.key;
  pen.textAlign = mark.column < side / 2 ? "start" : "end";
  const edge = mark.column < side / 2 ? mark.column : mark.column + 1;
  pen.fillText(mark.key, left + edge * cell, top / 2);
  pen.lineWidth = 1.5;
  pen.strokeStyle = ink.query;
  pen.strokeRect(left + 0.5, top + mark.row * cell, side * cell - 1, cell);
  pen.strokeStyle = ink.key;
  pen.strokeRect(left + mark.column * cell, top + 0.5, cell, side * cell - 1);
}
