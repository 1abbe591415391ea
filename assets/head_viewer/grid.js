// The head viewer: E, small maps of all heads.

function gridGeometry(view) {
  const { gridScroll, root } = view.dom;
  const { main } = view.scene;
  const width = gridScroll.clientWidth;
  if (root.dataset.size === "phone") return phoneGrid(view, main, width);
  const height = gridScroll.clientHeight;
  const { scrollTop, scrollLeft } = gridScroll;
  const left = 52;
  const top = 20;
  const gap = 5;
  const across = Math.max(26, Math.floor((width - left - 2) / main.heads));
  const down = Math.floor((height - top - 4) / main.layers);
  const step = Math.min(across, down < 22 ? 40 : down, 72); // rows too low to read scroll instead
  const cell = step - gap;
  const wide = Math.min(across - gap, Math.round(cell * 1.5));
  return {
    left, top, cell, wide, width, height,
    spanX: across,
    fullWidth: left + across * main.heads,
    fullHeight: step * main.layers + top,
    firstLayer: Math.floor(scrollTop / step),
    lastLayer: Math.min(main.layers - 1, Math.floor((scrollTop + height - top) / step)),
    at: (layer, head) => [
      left + head * across + (across - wide) / 2 - scrollLeft,
      layer * step + gap / 2 - scrollTop,
    ],
    find: (x, y) => ({
      layer: Math.floor((y + scrollTop) / step),
      head: Math.floor((x - left + scrollLeft) / across),
    }),
  };
}

/** One layer at a time, four heads across. */
function phoneGrid(view, main, width) {
  const columns = 4;
  const step = Math.floor(width / columns);
  const cell = step - 8;
  const rows = Math.ceil(main.heads / columns);
  const { layer } = focusOf(view);
  return {
    left: 0, top: 0, cell, wide: cell, width,
    height: rows * step,
    spanX: step,
    fullWidth: width,
    fullHeight: rows * step,
    firstLayer: layer,
    lastLayer: layer,
    at: (_, head) => [(head % columns) * step + 4, Math.floor(head / columns) * step + 4],
    find: (x, y) => ({ layer, head: Math.floor(y / step) * columns + Math.floor(x / step) }),
  };
}

/** The sticky line above the grid: head numbers, or which K/V head serves which query heads. */
function buildGridTop(view) {
  const { main } = view.scene;
  view.gridLabels = main.n_kv_heads < main.heads ? kvLabels(main) : headLabels(main);
  view.dom.gridTop.replaceChildren(...view.gridLabels.map(({ node }) => node));
}

function headLabels(main) {
  return Array.from({ length: main.heads }, (_, head) => ({
    node: el("span", { text: String(head) }),
    first: head,
    last: head,
  }));
}

function kvGroups(main) {
  const groups = [];
  main.kv_of.forEach((kv, head) => {
    if (groups.at(-1)?.kv === kv) groups.at(-1).last = head;
    else groups.push({ kv, first: head, last: head });
  });
  return groups;
}

function kvLabels(main) {
  return kvGroups(main).map(({ kv, first, last }) => {
    const heads = first === last ? first : `${first}-${last}`;
    const node = el("span", { text: `KV ${kv} serves Q ${heads}`, title: `KV ${kv} serves Q ${heads}` });
    node.dataset.group = kv % 3;
    return { node, first, last };
  });
}

function paintGrid(view, focus) {
  const { dom, scene } = view;
  const place = gridGeometry(view);
  const { main } = scene;
  dom.gridSpacer.style.width = `${place.fullWidth}px`;
  dom.gridSpacer.style.height = `${place.fullHeight}px`;
  dom.gridTop.style.height = `${place.top}px`;
  dom.gridScroll.tabIndex = place.fullHeight > place.height + 1 ? 0 : -1;
  for (const { node, first, last } of view.gridLabels) {
    node.style.left = `${place.left + first * place.spanX + 1}px`;
    node.style.width = `${(last - first + 1) * place.spanX - 2}px`;
  }
  const height = Math.max(10, Math.min(place.height - place.top, place.fullHeight - place.top));
  const context = enlargedContext(dom.grid, Math.min(place.width, place.fullWidth), height);
  paintGroups(view, main, place, context, height);
  for (let layer = place.firstLayer; layer <= place.lastLayer; layer += 1) {
    paintLayerName(view, place, context, layer, layer === focus.layer);
    for (let head = 0; head < main.heads; head += 1) paintThumb(view, main, place, context, layer, head);
  }
  scene.cards.forEach((card) => outline(context, place, card, view.palette.inks["key-fill"], 2, 1));
  outline(context, place, focus, view.palette.inks.query, 3, 2.5);
}

function paintGroups(view, main, place, context, height) {
  if (main.n_kv_heads >= main.heads || !place.top) return;
  for (const { kv, first, last } of kvGroups(main)) {
    context.fillStyle = view.palette.groups[kv % 3];
    const [x] = place.at(place.firstLayer, first);
    const margin = (place.spanX - place.wide) / 2;
    context.fillRect(x - margin + 1, 0, (last - first + 1) * place.spanX - 2, height);
  }
}

function paintLayerName(view, place, context, layer, chosen) {
  if (!place.left) return;
  const [, y] = place.at(layer, 0);
  context.font = `${chosen ? "700 " : ""}12.5px ${view.palette.font}`;
  context.fillStyle = chosen ? view.palette.inks.text : view.palette.inks.muted;
  context.textBaseline = "middle";
  context.fillText(`layer ${layer}`, 2, y + place.cell / 2);
}

function paintThumb(view, main, place, context, layer, head) {
  const [x, y] = place.at(layer, head);
  const { line, void: blank } = view.palette.inks;
  context.fillStyle = line;
  context.fillRect(x - 1, y - 1, place.wide + 2, place.cell + 2);
  context.fillStyle = blank;
  context.fillRect(x, y, place.wide, place.cell);
  const thumb = thumbOf(view, main, layer, head);
  context.imageSmoothingEnabled = thumb.width > place.cell;
  context.drawImage(thumb, x, y, place.wide, place.cell);
}

function outline(context, place, { layer, head }, ink, width, room) {
  if (layer < place.firstLayer || layer > place.lastLayer) return;
  const [x, y] = place.at(layer, head);
  context.strokeStyle = ink;
  context.lineWidth = width;
  context.beginPath();
  context.roundRect(x - room, y - room, place.wide + 2 * room, place.cell + 2 * room, 3);
  context.stroke();
}

/** A head's map, one pixel per weight; kept until the data, the scale, the hiding or the theme change. */
function thumbOf(view, trace, layer, head) {
  const name = `${layer},${head}`;
  if (!view.thumbs.has(name)) view.thumbs.set(name, drawThumb(view, trace, layer, head));
  return view.thumbs.get(name);
}

function drawThumb(view, trace, layer, head) {
  const pooled = trace.pooledSide > 0;
  const side = pooled ? trace.pooledSide : trace.size;
  const thumb = document.createElement("canvas");
  thumb.width = thumb.height = side;
  const context = thumb.getContext("2d");
  const image = context.createImageData(side, side);
  const pixels = new Uint32Array(image.data.buffer);
  const blank = hiddenPixels(view, trace, layer, head, pooled, side);
  for (let query = 0; query < side; query += 1) {
    const bytes = pooled ? pooledRow(trace, layer, head, query) : rowBytes(trace, layer, head, query);
    const colours = rowColours(view, bytes, blank);
    const length = pooled && trace.causal ? query + 1 : bytes.length;
    for (let key = 0; key < length; key += 1) {
      if (!blank[key]) pixels[query * side + key] = view.palette.scale[colours[bytes[key]]];
    }
  }
  context.putImageData(image, 0, 0);
  return thumb;
}

function hiddenPixels(view, trace, layer, head, pooled, side) {
  const blank = new Uint8Array(side);
  if (!view.options.hide) return blank;
  restingColumns(trace, layer, head).forEach((rests, column) => {
    if (rests) blank[pooled ? Math.floor(column / trace.pooledBlock) : column] = 1;
  });
  return blank;
}

function pooledRow(trace, layer, head, query) {
  const side = trace.pooledSide;
  const start = trace.pooled_at + ((layer * trace.heads + head) * side + query) * side;
  return trace.body.subarray(start, start + side);
}

/** byte -> place on the colour scale, for one row (only "per row" differs between rows). */
function rowColours(view, bytes, blank) {
  const { scale } = view.options;
  if (scale !== "row") return scaleTable(scale, 1);
  let top = 0;
  for (let key = 0; key < bytes.length; key += 1) if (!blank[key] && bytes[key] > top) top = bytes[key];
  return scaleTable(scale, top);
}

const SCALE_TABLES = new Map();

function scaleTable(scale, top) {
  const name = `${scale} ${top}`;
  if (!SCALE_TABLES.has(name)) {
    const rowTop = WEIGHT_OF_BYTE[top];
    const table = WEIGHT_OF_BYTE.map((weight) => Math.min(255, scaled(weight, scale, rowTop)));
    SCALE_TABLES.set(name, Uint8Array.from(table));
  }
  return SCALE_TABLES.get(name);
}
