// The head grid: every head of a model as one button, layers down, heads across.
//
// One Streamlit Components-v2 component. It draws what Python sends (attention/plots/head_grid.py) and answers with one
// trigger, "pick" {layer, head}, when a head is pressed. Colours and words come from Python; nothing is computed here.
//
// Keyboard: one stop for Tab; arrows move, Home/End go to the row's ends, Enter or Space press.

const MEMORY = "__headscope_grid";

/**
 * Draws, or redraws, the grid in component.parentElement; returns the clean-up.
 * @param {{data: object, parentElement: Element, setTriggerValue?: Function}} component
 */
export default function headGrid(component) {
  const host = component.parentElement;
  const view = host[MEMORY] ?? (host[MEMORY] = createView(host));
  view.answer = component.setTriggerValue ?? null;
  show(view, component.data);
  return () => {
    view.root.remove();
    delete host[MEMORY];
  };
}

function createView(host) {
  const root = document.createElement("div");
  root.className = "hg";
  host.appendChild(root);
  const view = { root, data: null, cells: [], at: [0, 0], said: null, answer: null };
  root.addEventListener("keydown", (event) => onKey(view, event));
  return view;
}

function show(view, data) {
  const before = view.data;
  view.data = data;
  if (!before || before.layers !== data.layers || before.heads !== data.heads || before.shared !== data.shared) {
    build(view);
  }
  view.table.setAttribute("aria-label", data.label);
  for (const [index, cell] of view.cells.entries()) dress(cell, data.cells[index], data.toggles);
  const moved = !before || String(before.chosen) !== String(data.chosen);
  if (moved && data.chosen) view.at = [...data.chosen];
  keepOneStop(view);
  say(view, data.chosen ? data.cells[place(view, ...view.at)].words : data.hint);
}

function build(view) {
  const { layers, heads, shared } = view.data;
  view.at = [0, 0];
  view.cells = [];
  view.table = part("div", "hg-table");
  view.table.setAttribute("role", "group");
  view.table.style.setProperty("--hg-heads", heads);
  view.table.dataset.tall = layers > 12;
  if (shared > 1) {
    view.table.append(part("span", "hg-name", ""));
    for (let group = 0; group < heads / shared; group += 1) {
      const name = part("span", "hg-group", `KV ${group}`);
      name.style.gridColumn = `span ${shared}`;
      view.table.append(name);
    }
  }
  view.table.append(part("span", "hg-name", "head"));
  for (let head = 0; head < heads; head += 1) view.table.append(part("span", "hg-name hg-across", String(head)));
  for (let layer = 0; layer < layers; layer += 1) {
    view.table.append(part("span", "hg-name", layer === 0 ? "layer 0" : String(layer)));
    for (let head = 0; head < heads; head += 1) view.table.append(makeCell(view, layer, head, shared));
  }
  view.said = part("p", "hg-said", "");
  view.root.replaceChildren(view.table, view.said);
}

function makeCell(view, layer, head, shared) {
  const cell = part("button", "hg-cell", "");
  cell.type = "button";
  cell.tabIndex = -1;
  cell.dataset.edge = shared > 1 && head > 0 && head % shared === 0;
  cell.addEventListener("click", () => {
    view.at = [layer, head];
    keepOneStop(view);
    view.answer?.("pick", { layer, head });
  });
  const tell = () => say(view, view.data.cells[place(view, layer, head)].words);
  cell.addEventListener("pointerenter", tell);
  cell.addEventListener("focus", tell);
  view.cells.push(cell);
  return cell;
}

function dress(cell, facts, toggles) {
  cell.textContent = facts.text;
  cell.style.setProperty("--hg-ground", facts.ground);
  cell.style.setProperty("--hg-ink", facts.ink);
  cell.dataset.faint = facts.faint;
  cell.dataset.struck = facts.struck;
  cell.dataset.chosen = facts.chosen;
  cell.setAttribute("aria-label", facts.words);
  cell.setAttribute("aria-pressed", toggles ? facts.struck : facts.chosen);
}

function onKey(view, event) {
  const { layers, heads } = view.data;
  const [layer, head] = view.at;
  const target = {
    ArrowUp: [Math.max(0, layer - 1), head],
    ArrowDown: [Math.min(layers - 1, layer + 1), head],
    ArrowLeft: [layer, Math.max(0, head - 1)],
    ArrowRight: [layer, Math.min(heads - 1, head + 1)],
    Home: [layer, 0],
    End: [layer, heads - 1],
  }[event.key];
  if (!target || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  view.at = target;
  keepOneStop(view);
  view.cells[place(view, ...target)].focus();
}

function keepOneStop(view) {
  const here = place(view, ...view.at);
  for (const [index, cell] of view.cells.entries()) cell.tabIndex = index === here ? 0 : -1;
}

function say(view, words) {
  view.said.textContent = words;
}

function place(view, layer, head) {
  return layer * view.data.heads + head;
}

function part(tag, className, text) {
  const node = document.createElement(tag);
  node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}
