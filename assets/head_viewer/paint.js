// The head viewer: colours, and everything painted around the three pictures.

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
