// The head viewer: C, one pane with words and arcs.

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
