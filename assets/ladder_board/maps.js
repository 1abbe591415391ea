// The ladder board: where the chosen head looks, before and after.

function paintMaps(view) {
  const { scene, dom } = view;
  const [share, latent] = FAMILIES.map((family) => current(view, family));
  dom.mapsTitle.textContent = `Layer ${scene.layer}, head ${scene.head}: where it looks, before and after`;
  const cell = view.cell ?? mostChanged(scene, share.weights ? share : latent);
  const shown = [
    { rung: scene.shipped, title: "As shipped", family: SHIPPED, less: null },
    { rung: share, title: titleOf(scene, share), family: "share", less: null },
    { rung: share, title: "minus as shipped", family: "share", less: scene.shipped },
    { rung: latent, title: titleOf(scene, latent), family: "latent", less: null },
    { rung: latent, title: "minus as shipped", family: "latent", less: scene.shipped },
  ];
  if (dom.maps.childElementCount !== shown.length) {
    dom.pictures = shown.map((one, at) => {
      const canvas = el("canvas", { role: "img" });
      const title = el("figcaption", { className: `hsl-ink-${one.family}` });
      const missing = el("p", { className: "hsl-note", text: "Measured on the texts only." });
      canvas.addEventListener("pointermove", (event) => pointAt(view, at, event));
      canvas.addEventListener("pointerdown", (event) => pointAt(view, at, event));
      return { canvas, title, missing, figure: el("figure", { className: one.less ? "hsl-minus" : "" }, [title, canvas, missing]) };
    });
    dom.maps.replaceChildren(...dom.pictures.map(({ figure }) => figure));
  }
  const sizes = mapSizes(view);
  shown.forEach((one, at) => {
    const { canvas, title, missing } = dom.pictures[at];
    title.textContent = one.title;
    canvas.hidden = one.rung.weights === null;
    missing.hidden = one.rung.weights !== null;
    if (one.rung.weights === null) return;
    paintMap(view, canvas, one, sizes, sizes.labelled.has(at), cell);
    canvas.setAttribute("aria-label", mapWords(scene, one, cell));
  });
  paintCell(view, cell, share, latent);
}

/** The cell whose weight sharing (or the latent) changed most. */
function mostChanged(scene, rung) {
  let best = 0;
  if (rung.weights) {
    const change = (at) => Math.abs(rung.weights[at] - scene.shipped.weights[at]);
    for (let at = 1; at < rung.weights.length; at += 1) if (change(at) > change(best)) best = at;
  }
  return [Math.floor(best / scene.side), best % scene.side];
}

function mapSizes(view) {
  const { scene, dom, palette } = view;
  const wide = dom.root.dataset.size === "wide";
  measuring.font = `13px ${palette.font}`;
  const longest = Math.min(84, Math.max(...scene.labels.map((label) => measuring.measureText(label).width)) + 8);
  const gap = 14;
  const total = dom.maps.clientWidth - 4;
  const slide = dom.root.dataset.hsPart !== undefined;
  const many = slide ? SLIDE.maps : wide ? 5 : 2;
  const side = Math.min(slide ? SLIDE.map : 300, Math.floor((total - longest - gap * (many - 1)) / many));
  const cell = side / scene.side;
  return { side, cell, gutter: longest, legible: cell >= 13, labelled: new Set(wide || slide ? [0] : [0, 1, 3]) };
}

function paintMap(view, canvas, { rung, less }, sizes, labelled, marked) {
  const { scene, palette } = view;
  const { side, cell, legible } = sizes;
  const left = labelled ? sizes.gutter : 0;
  const top = legible ? sizes.gutter : 4;
  const context = sizedContext(canvas, left + side, top + side);
  const line = cell > 6 ? 1 : 0;
  for (let query = 0; query < scene.side; query += 1) {
    for (let key = 0; key < scene.side; key += 1) {
      const at = query * scene.side + key;
      const hidden = scene.kind === "decoder" && key > query;
      if (hidden) context.fillStyle = palette.inks.void;
      else if (less) context.fillStyle = palette.differences[Math.round(127.5 + (127.5 * (rung.weights[at] - less.weights[at])) / WEIGHT_STEPS)];
      else context.fillStyle = palette.weights[Math.round((255 * rung.weights[at]) / WEIGHT_STEPS)];
      context.fillRect(left + key * cell, top + query * cell, cell - line, cell - line);
    }
  }
  context.strokeStyle = palette.inks.accent;
  context.lineWidth = 2.5;
  context.strokeRect(left + marked[1] * cell - 0.5, top + marked[0] * cell - 0.5, cell, cell);
  if (legible) writeLabels(view, context, sizes, left, top, labelled, marked);
}

function writeLabels(view, context, sizes, left, top, labelled, marked) {
  const { scene, palette } = view;
  const { cell, gutter } = sizes;
  scene.labels.forEach((label, at) => {
    context.save();
    context.font = `${marked[1] === at ? 700 : 400} 13px ${palette.font}`;
    context.fillStyle = palette.inks.text;
    context.translate(left + (at + 0.5) * cell, top - 6);
    context.rotate(-Math.PI / 2);
    context.textBaseline = "middle";
    context.fillText(fitted(context, label, gutter - 8), 0, 0);
    context.restore();
    if (!labelled) return;
    context.font = `${marked[0] === at ? 700 : 400} 13px ${palette.font}`;
    context.fillStyle = palette.inks.text;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText(fitted(context, label, gutter - 8), left - 6, top + (at + 0.5) * cell);
    context.textAlign = "left";
  });
}

function mapWords(scene, { rung, title, less }, [query, key]) {
  const at = query * scene.side + key;
  const value = less ? signed((rung.weights[at] - less.weights[at]) / WEIGHT_STEPS) : (rung.weights[at] / WEIGHT_STEPS).toFixed(2);
  return `${less ? `${titleOf(scene, rung)} less as shipped` : title}: ${scene.labels[query]} looks at ${scene.labels[key]}, ${value}`;
}

function paintCell(view, [query, key], share, latent) {
  const { scene, dom } = view;
  const at = query * scene.side + key;
  const before = scene.shipped.weights[at] / WEIGHT_STEPS;
  const now = (rung) => {
    if (!rung.weights) return null;
    const value = rung.weights[at] / WEIGHT_STEPS;
    return `${titleOf(scene, rung)}: ${value.toFixed(2)} (${signed(value - before)})`;
  };
  const parts = [`As shipped: ${before.toFixed(2)}`, now(share), now(latent)].filter(Boolean);
  dom.cell.replaceChildren(
    el("bdi", { className: "hsl-query", text: scene.labels[query] }), " looks at ",
    el("bdi", { className: "hsl-key", text: scene.labels[key] }), `. ${parts.join(" · ")}.`,
  );
  dom.maps.dataset.cell = `${query},${key}`;
}

function pointAt(view, at, event) {
  const { scene, dom } = view;
  const sizes = mapSizes(view);
  const { canvas } = dom.pictures[at];
  const [x, y] = pointIn(canvas, event);
  const left = sizes.labelled.has(at) ? sizes.gutter : 0;
  const top = sizes.legible ? sizes.gutter : 4;
  const key = Math.floor((x - left) / sizes.cell);
  const query = Math.floor((y - top) / sizes.cell);
  if (key < 0 || query < 0 || key >= scene.side || query >= scene.side) return;
  if (scene.kind === "decoder" && key > query) return;
  markCell(view, query, key);
}

function markCell(view, query, key) {
  if (view.cell && view.cell[0] === query && view.cell[1] === key) return;
  view.cell = [query, key];
  paintMaps(view);
}

function onMapKey(view, event) {
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const move = moves[event.key];
  if (!move || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  const { scene, dom } = view;
  const [query, key] = dom.maps.dataset.cell.split(",").map(Number);
  const row = clamp(query + move[0], 0, scene.side - 1);
  markCell(view, row, clamp(key + move[1], 0, scene.kind === "decoder" ? row : scene.side - 1));
}
