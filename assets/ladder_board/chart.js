// The ladder board: the chart of quality against numbers cached.

/** The curves to draw: each begins at the model as shipped, most numbers first. */
function curvesOf(view) {
  const { scene } = view;
  const curves = [];
  for (const family of FAMILIES) {
    for (const [way, name, main] of waysOf(scene, family)) {
      const chosen = view.way[family] === way;
      if (!main && !view.all && !chosen) continue;
      const found = rungsOf(scene, family, way).filter((rung) => rung.quality);
      if (!found.length) continue;
      const sorted = found.toSorted((one, other) => other.numbers - one.numbers);
      const joined = sorted[0].numbers === scene.full ? sorted : [scene.shipped, ...sorted];
      curves.push({ family, way, name, main, chosen, rungs: joined, loose: way === "split" });
    }
  }
  return curves;
}

function paintChart(view) {
  const { scene, dom, palette } = view;
  const { chart } = dom;
  const decoder = scene.kind === "decoder";
  dom.chartTitle.textContent = decoder ? `Surprise on ${scene.measure.title}` : `Likeness on ${scene.measure.title}`;
  const phone = dom.root.dataset.size === "phone";
  const width = Math.max(280, chart.parentElement.clientWidth - 24);
  const height = phone ? 340 : dom.root.dataset.hsPart ? SLIDE.chart : 396;
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.setAttribute("width", width);
  chart.setAttribute("height", height);
  const curves = curvesOf(view);
  if (!scene.shipped.quality || !curves.length) {
    chart.replaceChildren(
      draw("text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "hsl-tick", text: "Nothing was measured on this model yet." }),
    );
    dom.note.textContent = "Your sentence below is computed; quality on a text is not.";
    chart.setAttribute("aria-label", "No quality was measured on this model yet.");
    return;
  }
  const frame = { left: phone ? 58 : 78, right: 14, top: 26, bottom: 44, width, height };
  const drawn = [scene.shipped, ...curves.flatMap((curve) => curve.rungs)];
  const x = xScale(frame, drawn);
  const y = yScale(frame, drawn, decoder);
  const place = (rung) => [x.at(rung.numbers), y.at(rung.quality.value)];
  const here = current(view, view.active);
  const parts = [...axes(view, frame, x, y, phone)];
  const lines = [];
  const dots = [];
  for (const curve of curves) {
    const ink = `var(--hs-${inkOf(curve)})`;
    const faint = curve.main || curve.chosen ? "" : " hsl-faint";
    const points = curve.rungs.map((rung) => place(rung).map((value) => value.toFixed(1)).join(" "));
    if (!curve.loose) lines.push(draw("path", { d: `M${points.join("L")}`, class: `hsl-curve${faint}${curve.main ? "" : " hsl-dashed"}`, stroke: ink }));
    for (const rung of curve.rungs) {
      if (rung.family === SHIPPED) continue;
      const [left, top] = place(rung);
      lines.push(draw("path", { d: `M${left} ${y.at(rung.quality.low)}V${y.at(rung.quality.high)}`, class: `hsl-spread${faint}`, stroke: ink }));
      dots.push(dot(rung, left, top, ink, `hsl-dot${faint}`, 4.5));
    }
  }
  dots.push(draw("rect", { x: place(scene.shipped)[0] - 6, y: place(scene.shipped)[1] - 6, width: 12, height: 12, class: "hsl-shipped" }));
  const chosen = FAMILIES.map((family) => ({ family, rung: current(view, family) })).filter(({ rung }) => rung.quality);
  for (const { family, rung } of chosen) {
    const [left, top] = place(rung);
    const ink = `var(--hs-${inkOf(rung.family === SHIPPED ? { family, way: view.way[family] } : rung)})`;
    dots.push(draw("g", { class: "hsl-marker", "data-family": family }, [
      draw("circle", { cx: left, cy: top, r: 11, fill: "none", stroke: ink, "stroke-width": 2.5 }),
      dot(rung, left, top, ink, "hsl-dot", 7),
    ]));
  }
  const hereAt = x.at(here.numbers);
  const label = `you are here: ${here.numbers} numbers`;
  const turned = hereAt > width / 2;
  parts.push(
    draw("path", { d: `M${hereAt} ${frame.top - 12}V${height - frame.bottom}`, class: "hsl-here" }),
    draw("text", { x: hereAt + (turned ? -8 : 8), y: frame.top - 6, "text-anchor": turned ? "end" : "start", class: "hsl-label", text: label }),
  );
  measuring.font = `500 14px ${palette.font}`;
  const long = measuring.measureText(label).width + 12;
  const hereBox = [turned ? hereAt - long : hereAt - 3, 0, turned ? hereAt + 3 : hereAt + long, frame.top];
  const words = labels(view, curves, chosen, place, frame, palette.font, hereBox);
  chart.replaceChildren(...parts, ...lines, ...dots, ...words);
  chart.setAttribute("aria-label", `${scene.measure.axis} against numbers cached per token and layer. ${stateOf(view).join(" ")}`);
  dom.note.textContent = decoder
    ? `Surprise 100: as unsure as among 100 equally likely tokens. Thin bars: best and worst of ${scene.measure.pieces}.`
    : `1: the same embedding as the original's. Thin bars: best and worst of ${scene.measure.pieces}.`;
}

/** Round: no training. Diamond: healed. */
function dot(rung, left, top, ink, className, radius) {
  if (rung.badge !== "healed") return draw("circle", { cx: left, cy: top, r: radius, class: className, fill: ink });
  const far = radius * 1.35;
  return draw("path", { d: `M${left} ${top - far}L${left + far} ${top}L${left} ${top + far}L${left - far} ${top}Z`, class: className, fill: ink });
}

function xScale(frame, rungs) {
  const numbers = rungs.map((rung) => rung.numbers);
  const low = Math.log(Math.min(...numbers) / 1.15);
  const high = Math.log(Math.max(...numbers) * 1.1);
  const room = frame.width - frame.left - frame.right;
  return { at: (value) => frame.left + ((Math.log(value) - low) / (high - low)) * room, numbers };
}

function yScale(frame, rungs, log) {
  const values = rungs.flatMap((rung) => [rung.quality.value, rung.quality.low, rung.quality.high]);
  const top = frame.top + (log ? 26 : 42);
  const room = frame.height - frame.bottom - top - 20;
  const turn = log ? Math.log10 : (value) => value;
  let low = log ? Math.log10(Math.min(...values)) - 0.12 : Math.min(...values) - 0.03;
  const high = log ? Math.log10(Math.max(...values)) + 0.08 : 1.02;
  if (!log) low = Math.max(-0.3, low);
  const at = (value) => top + (1 - (turn(Math.max(value, log ? 1e-9 : -1)) - low) / (high - low)) * room;
  return { at, ticks: log ? powers(low, high) : steps(low, Math.min(1, high)) };
}

function readTick(value) {
  return value >= 1e6 ? `${value / 1e6} million` : value.toLocaleString("en-US");
}

function powers(low, high) {
  const multiples = high - low < 1.6 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = Math.floor(low); power <= high; power += 1) {
    for (const multiple of multiples) {
      const value = multiple * 10 ** power;
      if (Math.log10(value) >= low && Math.log10(value) <= high) ticks.push(value);
    }
  }
  return ticks;
}

function steps(low, high) {
  const step = high - low > 0.6 ? 0.2 : high - low > 0.25 ? 0.1 : 0.05;
  const ticks = [];
  for (let count = Math.ceil(low / step - 1e-9); count * step <= high + 1e-9; count += 1) ticks.push(count * step);
  return ticks;
}

function axes(view, frame, x, y, phone) {
  const { scene } = view;
  const bottom = frame.height - frame.bottom;
  const parts = [];
  for (const value of y.ticks) {
    const top = y.at(value);
    parts.push(
      draw("path", { d: `M${frame.left} ${top}H${frame.width - frame.right}`, class: "hsl-grid" }),
      draw("text", { x: frame.left - 8, y: top + 4.5, "text-anchor": "end", class: "hsl-tick", text: scene.kind === "decoder" ? readTick(value) : value.toFixed(2).replace(/0$/u, "") }),
    );
  }
  let last = Infinity;
  const wanted = [...new Set(x.numbers)].sort((one, other) => other - one);
  for (const number of wanted) {
    const left = x.at(number);
    const tick = draw("path", { d: `M${left} ${bottom}v5`, class: "hsl-axis" });
    parts.push(tick);
    if (last - left < (phone ? 30 : 34)) continue;
    last = left;
    parts.push(draw("text", { x: left, y: bottom + 19, "text-anchor": "middle", class: "hsl-tick", text: String(number) }));
  }
  parts.push(
    draw("path", { d: `M${frame.left} ${bottom}H${frame.width - frame.right}`, class: "hsl-axis" }),
    draw("text", { x: (frame.left + frame.width - frame.right) / 2, y: frame.height - 6, "text-anchor": "middle", class: "hsl-tick", text: phone ? "numbers cached per token and layer" : "numbers cached per token and layer (log)" }),
    ...(phone ? [] : [draw("text", { x: 14, y: (frame.top + bottom) / 2, "text-anchor": "middle", class: "hsl-tick", transform: `rotate(-90 14 ${(frame.top + bottom) / 2})`, text: `${scene.measure.axis}${scene.kind === "decoder" ? ": lower is better" : ": higher is better"}` })]),
  );
  return parts;
}

const measuring = document.createElement("canvas").getContext("2d");

/** One label a curve, at its chosen or nearest rung, put where nothing lies yet. */
function labels(view, curves, chosen, place, frame, font, hereBox) {
  const { scene } = view;
  const here = current(view, view.active).numbers;
  const phone = view.dom.root.dataset.size === "phone";
  const wanted = [];
  for (const curve of curves) {
    const own = curve.chosen ? chosen.find(({ family, rung }) => family === curve.family && rung.family !== SHIPPED)?.rung : null;
    const rung = own ?? nearest(curve.rungs.filter((one) => one.family !== SHIPPED), here);
    const name = phone ? (SHORT[curve.way] ?? curve.name) : curve.way === "mean" || curve.way === "aligned" || curve.way === "whitened" ? titleOf(scene, rung).toLowerCase().replace("k/v head", "K/V head") : `${curve.name}, ${rung.numbers}`;
    wanted.push({ rung, strong: own !== null && own !== undefined, ink: inkOf(curve), text: `${name}: ${readQuality(scene, rung)}`, minor: !curve.main && !curve.chosen });
  }
  wanted.unshift({ rung: scene.shipped, strong: false, ink: "text", text: `as shipped: ${readQuality(scene, scene.shipped)}`, minor: false });
  wanted.sort((one, other) => Number(other.strong) - Number(one.strong) || Number(one.minor) - Number(other.minor));
  const points = curves.flatMap((curve) => curve.rungs).map((rung) => place(rung));
  const taken = [hereBox, ...points.map(([left, top]) => [left - 8, top - 8, left + 8, top + 8])];
  const strokes = curves.filter((curve) => !curve.loose && (curve.main || curve.chosen)).flatMap((curve) => along(curve.rungs.map((rung) => place(rung))));
  const size = phone ? 13 : 14;
  return wanted.flatMap((label) => {
    measuring.font = `${label.strong ? 700 : 500} ${size}px ${font}`;
    const long = measuring.measureText(label.text).width;
    const [left, top] = place(label.rung);
    const spot = freeSpot(left, top, long, size, frame, [...taken, ...strokes]) ?? freeSpot(left, top, long, size, frame, taken);
    if (!spot) return [];
    taken.push(spot.box);
    return [draw("text", { x: spot.x, y: spot.y, class: `hsl-label${label.strong ? " hsl-strong" : ""}`, style: `fill: var(--hs-${label.ink}); font-size: ${size}px`, text: label.text })];
  });
}

/** Small boxes along a curve, for labels to keep off. */
function along(points) {
  return points.slice(1).flatMap(([right, low], at) => {
    const [left, top] = points[at];
    const count = Math.max(1, Math.ceil(Math.hypot(right - left, low - top) / 8));
    return Array.from({ length: count + 1 }, (_, step) => {
      const [x, y] = [left + ((right - left) * step) / count, top + ((low - top) * step) / count];
      return [x - 2, y - 2, x + 2, y + 2];
    });
  });
}

function freeSpot(left, top, long, size, frame, taken) {
  for (const rise of [0, -20, 20, -40, 40, -60, 60, -80, 80]) {
    for (const side of [15, -15 - long]) {
      const x = left + side;
      const y = top + rise + size * 0.36;
      const box = [x - 3, y - size, x + long + 3, y + size * 0.3];
      const inside = box[0] > frame.left - 2 && box[2] < frame.width - 2 && box[1] > 2 && box[3] < frame.height - frame.bottom;
      const free = taken.every((one) => one[2] < box[0] || one[0] > box[2] || one[3] < box[1] || one[1] > box[3]);
      if (inside && free) return { x, y, box };
    }
  }
  return null;
}
