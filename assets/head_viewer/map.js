// The head viewer: C as a map.

function mapGeometry(view, pane) {
  const { scroll, trace } = pane;
  const width = scroll.clientWidth;
  const height = scroll.clientHeight;
  const phone = view.dom.root.dataset.size === "phone";
  const left = Math.round(clamp(width * 0.2, 84, 120));
  const top = 92;
  const least = phone ? 24 : 12;
  const cell = clamp(Math.floor((height - top - 8) / trace.size), least, 48);
  const wide = clamp(Math.floor((width - left - 40) / trace.size), least, Math.round(cell * 1.7));
  return { width, height, left, top, cell, wide, sideways: scroll.scrollLeft, down: scroll.scrollTop };
}

function paintMap(view, pane, focus, row) {
  const place = mapGeometry(view, pane);
  const { trace } = pane;
  const side = place.cell * trace.size;
  const across = place.wide * trace.size;
  clearWords(pane);
  pane.drawn = pane.target = null;
  pane.spacer.style.width = `${place.left + across + 36}px`;
  pane.spacer.style.height = `${place.top + side + 8}px`;
  const drawn = [Math.min(place.width, place.left + across + 36), Math.min(place.height, place.top + side + 8)];
  const context = enlargedContext(pane.canvas, ...drawn);
  context.save();
  context.beginPath();
  context.rect(place.left - 2, place.top - 2, across + 4, side + 4);
  context.clip();
  paintMapCells(view, pane, focus, place, context);
  paintCrosshair(view, focus, row, place, context, [across, side]);
  context.restore();
  paintMapLabels(view, pane, focus, row, place, context);
  return false;
}

function visible(place, size, along) {
  const down = along === "query";
  const [offset, room] = down ? [place.down, place.height - place.top] : [place.sideways, place.width - place.left];
  const unit = down ? place.cell : place.wide;
  return [Math.floor(offset / unit), Math.min(size - 1, Math.floor((offset + room) / unit))];
}

function paintMapCells(view, pane, focus, place, context) {
  const { trace } = pane;
  const { css, inks } = view.palette;
  const gap = place.cell > 16 ? 1 : 0;
  const [firstRow, lastRow] = visible(place, trace.size, "query");
  const [firstKey, lastKey] = visible(place, trace.size, "key");
  for (let query = firstRow; query <= lastRow; query += 1) {
    const row = shownRow(view, trace, focus.layer, focus.head, query);
    if (!row) return;
    const rowTop = row.weights[row.top];
    for (let key = firstKey; key <= lastKey; key += 1) {
      const blank = (trace.causal && key > query) || (view.options.hide && row.hidden[key]);
      context.fillStyle = blank ? inks.void : css[scaled(row.weights[key], view.options.scale, rowTop)];
      const x = place.left + key * place.wide - place.sideways;
      const y = place.top + query * place.cell - place.down;
      context.fillRect(x, y, place.wide - gap, place.cell - gap);
    }
  }
}

function paintCrosshair(view, focus, row, place, context, [across, side]) {
  const { inks } = view.palette;
  const key = focus.key ?? row?.top ?? 0;
  const x = place.left + key * place.wide - place.sideways;
  const y = place.top + focus.query * place.cell - place.down;
  context.lineWidth = 2;
  context.strokeStyle = inks.query;
  context.strokeRect(place.left - 1, y - 1, across + 1, place.cell + 1);
  context.strokeStyle = inks["key-fill"];
  context.strokeRect(x - 1, place.top - 1, place.wide + 1, side + 1);
  context.lineWidth = 3;
  context.strokeRect(x - 1, y - 1, place.wide + 1, place.cell + 1);
}

/** Row labels left, column labels slanted on top; thinned so that they never touch. */
function paintMapLabels(view, pane, focus, row, place, context) {
  const { trace } = pane;
  const { inks, font } = view.palette;
  const key = focus.key ?? row?.top ?? 0;
  const [everyRow, everyKey] = [Math.ceil(15 / place.cell), Math.ceil(20 / place.wide)];
  const size = clamp(place.cell * 0.42, 12, 15);
  const write = (index, ink, chosen, x, y) => {
    context.font = `${chosen ? "700 " : ""}${size}px ${font}`;
    context.fillStyle = chosen ? ink : trace.isSpecial[index] ? inks.muted : inks.text;
    context.fillText(fitted(context, trace.labels[index], place.left - 14), x, y);
  };
  context.textBaseline = "middle";
  const [firstRow, lastRow] = visible(place, trace.size, "query");
  context.textAlign = "right";
  for (let query = firstRow; query <= lastRow; query += 1) {
    const y = place.top + (query + 0.5) * place.cell - place.down;
    if (y < place.top + 2 || (query % everyRow && query !== focus.query)) continue;
    write(query, inks.query, query === focus.query, place.left - 8, y);
  }
  const [firstKey, lastKey] = visible(place, trace.size, "key");
  context.textAlign = "left";
  for (let index = firstKey; index <= lastKey; index += 1) {
    const x = place.left + (index + 0.5) * place.wide - place.sideways;
    if (x < place.left + 2 || (index % everyKey && index !== key)) continue;
    context.save();
    context.translate(x, place.top - 8);
    context.rotate(-Math.PI / 4);
    write(index, inks.key, index === key, 0, 0);
    context.restore();
  }
  context.font = `12.5px ${font}`;
  context.fillStyle = inks.muted;
  context.textAlign = "left";
  context.fillText("query (row) ↓", 8, place.top - 12);
  context.fillText("key (column) →", 8, 14);
}
