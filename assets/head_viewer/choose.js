// The head viewer: changing the selection, by pointer and by keyboard.

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
