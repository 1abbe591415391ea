// The head viewer: what it keeps, in the URL's v.* parameters and in the browser's stores.

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
