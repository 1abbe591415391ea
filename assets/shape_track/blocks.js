// The shape track: painting blocks to their shape.

function readPalette(view) {
  const { read, readAll, font } = readStyle(view);
  const roles = Object.fromEntries(
    ["query", "key", "value", "weights", "output"].map((role) => [role, parseColour(read(role))]),
  );
  const inks = readAll(["text", "muted", "line", "void", "lit", "accent"]);
  return { roles, inks, ground: parseColour(read("card")), font };
}

/** Flat tables, rows cut into head pieces (split, permuted back), or heads as layers in depth. */
function kindOf(tensor) {
  if (tensor.shape.length < 3) return "flat";
  return ["head", "kv_head"].includes(tensor.axes[0]) ? "layers" : "pieces";
}

/** The layer drawn in front: the chosen element's, or the first lit one. */
function frontOf(view, tensor) {
  if (view.pick.key === tensor.key) return view.pick.index[0];
  const mask = view.lit.get(tensor.key);
  const first = mask.indexOf(1);
  return first < 0 ? 0 : unravel(first, tensor.shape)[0];
}

function layOut(view, tensor, width, height, focus) {
  const kind = kindOf(tensor);
  const { shape } = tensor;
  const layers = kind === "layers" ? shape[0] : 1;
  const pieces = kind === "pieces" ? shape[1] : 1;
  const rows = kind === "layers" ? shape[1] : shape[0];
  const columns = shape.at(-1);
  const behind = Math.min(layers, MOST_LAYERS) - 1;
  const gap = pieces > 1 ? clamp((width * 0.25) / (pieces - 1), 2, focus ? 14 : 8) : 0;
  const most = focus ? 52 : 22;
  const reach = behind ? clamp(Math.min(width, height) * 0.24, 10, focus ? 44 : 30) : 0;
  const roomX = width - reach - gap * (pieces - 1) - 4;
  const roomY = height - reach - 4;
  let cellX = Math.min(most, roomX / (columns * pieces));
  let cellY = Math.min(most, roomY / rows);
  if (cellX >= 4) {
    const square = Math.min(cellX, cellY);
    cellX = Math.min(cellX, square * (focus ? 1.6 : 1.2)); // wider where numbers are written
    cellY = square;
  } else {
    cellY = Math.min(roomY / rows, Math.max(cellX, 9));
  }
  const shift = behind ? Math.min(reach / behind, Math.max(3, cellY * 0.75)) : 0;
  const wide = cellX * columns * pieces + gap * (pieces - 1);
  const tall = cellY * rows;
  return {
    kind, layers, pieces, rows, columns, behind, gap, cellX, cellY, shift, wide, tall,
    left: Math.max(2, (width - wide - shift * behind) / 2),
    top: Math.max(2, (height - tall - shift * behind) / 2) + shift * behind,
    front: kind === "layers" ? frontOf(view, tensor) : 0,
  };
}

/** Layer number of the k-th layer from the front. */
function layerAt(block, depth) {
  return (block.front + depth) % block.layers;
}

function indexOf(block, layer, piece, row, column) {
  if (block.kind === "layers") return [layer, row, column];
  return block.kind === "pieces" ? [row, piece, column] : [row, column];
}

function cellBox(block, depth, piece, row, column) {
  const x = block.left + depth * block.shift + piece * (block.columns * block.cellX + block.gap) + column * block.cellX;
  const y = block.top - depth * block.shift + row * block.cellY;
  return [x, y];
}

function paint(view, card) {
  if (card.frame.hidden) return;
  const { canvas, tensor } = card;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (!width || !height) return;
  const context = contextOf(canvas, width, height);
  const block = layOut(view, tensor, width, height, card.node.hasAttribute("data-on"));
  card.block = block;
  const mask = view.lit.get(tensor.key);
  // A few lit elements get an outline; where much is lit, the full colour says enough.
  const lit = counted(mask);
  const few = lit <= mask.length / 2 && lit <= Math.max(8, 2 * Math.max(...tensor.shape));
  placeLabels(card, block, width, height);
  for (let depth = block.behind; depth >= 0; depth -= 1) paintLayer(view, context, tensor, block, depth, mask, few);
  paintAxes(view, context, tensor, block);
}

/** Axis names stand at the edges of the block, not of the canvas. */
function placeLabels(card, block, width, height) {
  const { left, top, wide, tall, shift, behind } = block;
  const aside = left + wide / 2 - width / 2;
  card.left.style.translate = `${Math.max(0, left - 4)}px ${top + tall / 2 - height / 2}px`;
  card.bottom.style.translate = `${aside}px ${top + tall - height + 4}px`;
  card.top.style.translate = `0 ${Math.max(0, top - shift * behind - 6)}px`;
}

function paintLayer(view, context, tensor, block, depth, mask, few) {
  const layer = layerAt(block, depth);
  const [left, top] = cellBox(block, depth, 0, 0, 0);
  const edge = block.cellX >= 4 ? 1 : 0;
  context.fillStyle = `rgb(${view.palette.ground})`;
  for (let piece = 0; piece < block.pieces; piece += 1) {
    const [x] = cellBox(block, depth, piece, 0, 0);
    context.fillRect(x - edge, top - edge, block.columns * block.cellX + 2 * edge, block.tall + 2 * edge);
  }
  const draw = block.cellX >= 4 ? paintCells : paintHeat;
  draw(view, context, tensor, block, depth, layer, mask, few);
  if (block.layers > 1 && block.cellX < 4) {
    context.strokeStyle = view.palette.inks.line;
    context.strokeRect(left - 0.5, top - 0.5, block.wide + 1, block.tall + 1);
  }
}

function paintCells(view, context, tensor, block, depth, layer, mask, few) {
  const { inks, font } = view.palette;
  const chosen = view.pick.key === tensor.key ? ravel(view.pick.index, tensor.shape) : -1;
  const written = depth === 0 && block.cellX >= 29 && block.cellY >= 15;
  const inset = block.cellX >= 8 ? 1 : 0.5;
  for (let piece = 0; piece < block.pieces; piece += 1) {
    for (let row = 0; row < block.rows; row += 1) {
      for (let column = 0; column < block.columns; column += 1) {
        const flat = ravel(indexOf(block, layer, piece, row, column), tensor.shape);
        const [x, y] = cellBox(block, depth, piece, row, column);
        const box = [x + inset, y + inset, block.cellX - 2 * inset, block.cellY - 2 * inset];
        const lit = Boolean(mask[flat]);
        const value = tensor.values[flat];
        const colour = flat === chosen ? parseColour(inks.lit) : cellColour(view, tensor, value, lit, depth);
        context.fillStyle = `rgb(${colour})`;
        roundedBox(context, box, Math.min(3, block.cellX / 5));
        context.fill();
        if (value === -Infinity && block.cellX >= 8) hatch(context, box, inks.muted);
        if ((lit && few) || flat === chosen) {
          context.lineWidth = flat === chosen ? 2.5 : 1.75;
          context.strokeStyle = inks.text;
          context.stroke();
        }
        if (written) writeValue(context, tensor, value, box, colour, lit, font);
      }
    }
  }
}

function roundedBox(context, [x, y, width, height], radius) {
  context.beginPath();
  context.roundRect(x, y, width, height, radius);
}

function hatch(context, [x, y, width, height], ink) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = ink;
  context.lineWidth = 1;
  context.globalAlpha = 0.55;
  context.beginPath();
  for (let at = -height; at < width; at += 5) {
    context.moveTo(x + at, y + height);
    context.lineTo(x + at + height, y);
  }
  context.stroke();
  context.restore();
}

function writeValue(context, tensor, value, [x, y, width, height], colour, lit, font) {
  const [red, green, blue] = colour;
  const dark = 0.299 * red + 0.587 * green + 0.114 * blue < 140;
  const digits = width >= 40 && Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0;
  const text = tensor.symbol === "mask" ? (value ? "T" : "F") : number(value, digits);
  context.font = `${lit ? "600 " : ""}${clamp(Math.floor(Math.min(height * 0.5, width / 2.9)), 9, 15)}px ${font}`;
  context.fillStyle = dark ? "#ffffff" : "#10131a";
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, x + width / 2, y + height / 2 + 0.5);
}

/** One pixel per number, stretched; lit places get a bar wide enough to see. */
function paintHeat(view, context, tensor, block, depth, layer, mask, few) {
  const { inks } = view.palette;
  const { rows, columns } = block;
  for (let piece = 0; piece < block.pieces; piece += 1) {
    const picture = new ImageData(columns, rows);
    const pixels = picture.data;
    for (let row = 0; row < rows; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const flat = ravel(indexOf(block, layer, piece, row, column), tensor.shape);
        const colour = cellColour(view, tensor, tensor.values[flat], Boolean(mask[flat]), depth);
        pixels.set([...colour, 255], 4 * (row * columns + column));
      }
    }
    const sheet = new OffscreenCanvas(columns, rows);
    sheet.getContext("2d").putImageData(picture, 0, 0);
    const [x, y] = cellBox(block, depth, piece, 0, 0);
    context.imageSmoothingEnabled = columns * block.cellX < columns;
    context.drawImage(sheet, x, y, columns * block.cellX, block.tall);
  }
  if (few) outlineRuns(view, context, tensor, block, depth, layer, mask);
}

/** Frames round what is lit in a heatmap: runs of a row, joined where rows below hold the same run. */
function outlineRuns(view, context, tensor, block, depth, layer, mask) {
  const { inks } = view.palette;
  const chosen = view.pick.key === tensor.key ? ravel(view.pick.index, tensor.shape) : -1;
  for (let piece = 0; piece < block.pieces; piece += 1) {
    for (const { row, rows, from, to } of litRuns(tensor, block, layer, piece, mask)) {
      const [x, y] = cellBox(block, depth, piece, row, from);
      const wide = (to - from) * block.cellX;
      const tall = rows * block.cellY;
      const one = to - from === 1 && rows === 1;
      // Narrower than the eye sees: widened about its middle.
      const box = [x - Math.max(0, 5 - wide) / 2, y - Math.max(0, 5 - tall) / 2, Math.max(5, wide), Math.max(5, tall)];
      const own = one && ravel(indexOf(block, layer, piece, row, from), tensor.shape) === chosen;
      context.fillStyle = inks.lit;
      if (own) context.fillRect(...box);
      context.strokeStyle = inks.text;
      context.lineWidth = 2;
      context.strokeRect(...box);
    }
  }
}

function litRuns(tensor, block, layer, piece, mask) {
  const runs = [];
  for (let row = 0; row < block.rows; row += 1) {
    for (let from = 0; from < block.columns; from += 1) {
      const isLit = (column) => mask[ravel(indexOf(block, layer, piece, row, column), tensor.shape)];
      if (!isLit(from)) continue;
      let to = from + 1;
      while (to < block.columns && isLit(to)) to += 1;
      const above = runs.find((run) => run.row + run.rows === row && run.from === from && run.to === to);
      if (above) above.rows += 1;
      else runs.push({ row, rows: 1, from, to });
      from = to;
    }
  }
  return runs;
}

/** From the card's ground to the concept's colour; what is not lit stays pale, layers behind are paler. */
function cellColour(view, tensor, value, lit, depth) {
  const { roles, ground, inks } = view.palette;
  if (value === -Infinity) return parseColour(inks.void);
  const [low, high] = tensor.symbol === "weights" || tensor.symbol === "mask" ? [0, 1] : tensor.range;
  const share = high > low ? clamp((value - low) / (high - low), 0, 1) : 0.5;
  const strength = lit ? 0.28 + 0.66 * share : 0.1 + 0.34 * share;
  const faded = depth ? strength * 0.8 : strength;
  return ground.map((part, at) => Math.round(part + (roles[tensor.role][at] - part) * faded));
}

/** A heavy line along the edge of a lit axis. */
function paintAxes(view, context, tensor, block) {
  if (view.axis === null) return;
  const { left, top, wide, tall, shift, behind } = block;
  const [rows, columns] = block.kind === "layers" ? [1, 2] : block.kind === "pieces" ? [0, 2] : [0, 1];
  const lines = [
    [rows, [left - 2, top, left - 2, top + tall]],
    [columns, [left, top + tall + 2, left + wide, top + tall + 2]],
  ];
  if (block.kind === "layers") {
    lines.push([0, [left, top - 2, left + shift * behind, top - 2 - shift * behind]]);
    lines.push([0, [left + wide + 2, top, left + wide + 2 + shift * behind, top - shift * behind]]);
  }
  if (block.kind === "pieces") lines.push([1, [left, top - 3, left + wide, top - 3]]);
  context.strokeStyle = view.palette.inks.accent;
  context.lineWidth = 4;
  context.lineCap = "round";
  for (const [axis, [fromX, fromY, toX, toY]] of lines) {
    if (!lights(view, tensor.axes[axis])) continue;
    context.beginPath();
    context.moveTo(fromX, fromY);
    context.lineTo(toX, toY);
    context.stroke();
  }
}

/** The element under a point of a card's canvas, or null. */
function elementAt(card, x, y) {
  const { block } = card;
  if (!block) return null;
  for (let depth = 0; depth <= block.behind; depth += 1) {
    for (let piece = 0; piece < block.pieces; piece += 1) {
      const [left, top] = cellBox(block, depth, piece, 0, 0);
      const column = Math.floor((x - left) / block.cellX);
      const row = Math.floor((y - top) / block.cellY);
      if (row >= 0 && row < block.rows && column >= 0 && column < block.columns) {
        return indexOf(block, layerAt(block, depth), piece, row, column);
      }
    }
  }
  return null;
}
