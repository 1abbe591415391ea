// The ladder board: one real model on every rung, its quality, heads and answers beside what it caches.
//
// One Streamlit Components-v2 component. It draws one binary message (its layout: attention/plots/ladder_board.py)
// that holds every rung, and keeps its own state on parentElement: moving a slider asks the server for nothing.
//
// Keyboard: the sliders are the browser's own; on the maps the arrow keys move the marked cell.

const NAME = "ladder board";
const MAGIC = "HSL1";
const OWN = "l.";
const MEMORY = "__headscope_ladder";
const STORE = "headscope.ladder";
const FAMILIES = ["share", "latent"];
const WEIGHT_STEPS = 10_000; // as in ladder_board.py
const SHIPPED = "shipped";
const SVG = "http://www.w3.org/2000/svg";
const INKS = {
  mean: "averaged", aligned: "aligned", healed: "healed", whitened: "latent",
  shipped: "text", "latent healed": "latent-healed",
};
const SAME_DIGITS = 4;
const SLIDE = { chart: 250, map: 150, maps: 3 }; // heights that fit a slide, and how many maps stand on one
const SHORT = { mean: "averaged", aligned: "aligned", healed: "healed", whitened: "latent", plain: "of the weights" };

/**
 * Draws, or redraws, the board in component.parentElement; returns the clean-up.
 * @param {{data: Uint8Array, parentElement: Element}} component
 */
export default function ladderBoard(component) {
  const host = component.parentElement;
  const view = host[MEMORY] ?? mount(host, atFirst());
  receive(view, component.data, dressUp);
  return () => takeDown(view);
}

// ---------------------------------------------------------------------------------------------------------------
// Life of the view

function atFirst() {
  return {
    message: null, // the bytes drawn
    scene: null, // the decoded message
    way: { share: "mean", latent: "whitened" },
    at: { share: null, latent: null }, // each slider's stop, by key
    active: "share", // the slider moved last: where "you are here" points
    all: false, // whether the chart draws every way measured
    cell: null, // [query, key] marked in the maps, or null: where sharing changed most
    painted: 0,
  };
}

/** Takes a new scene in place: on the same model both sliders stay, on another they start anew. */
function adopt(view, scene) {
  const before = view.scene;
  const sameModel = before?.model === scene.model;
  view.scene = scene;
  view.cell = null;
  if (!sameModel) {
    begin(view);
    if (canRemember()) {
      const asked = parametersOf(window.location.search);
      const kept = storedParameters();
      if (before === null && asked.size) recall(view, asked);
      else if (kept.get("of") === scene.model) recall(view, kept);
    }
  }
  settle(view);
  if (before !== null && !sameModel) remember(view);
  view.dom.problem.hidden = true;
  view.dom.body.hidden = false;
  buildWays(view);
  buildGroups(view);
  dressUp(view);
}

/** The stops and ways a scene opens with. */
function begin(view) {
  Object.assign(view.at, view.scene.start);
  Object.assign(view.way, { share: "mean", latent: "whitened" });
}

/** Takes the state of the address, which a teacher's board has put there; what it leaves out is as at the start. */
function follow(view) {
  begin(view);
  recall(view, parametersOf(window.location.search));
  redraw(view);
}

function redraw(view) {
  settle(view);
  buildWays(view);
  paint(view);
}

/** Puts ways and stops back into what this scene has. */
function settle(view) {
  for (const family of FAMILIES) {
    if (!waysOf(view.scene, family).some(([way]) => way === view.way[family])) {
      view.way[family] = family === "share" ? "mean" : "whitened";
    }
    const stops = stopsOf(view, family);
    if (!stops.some((rung) => rung.key === view.at[family])) {
      view.at[family] = nearest(stops, Number.parseInt(view.at[family], 10) || view.scene.full).key;
    }
  }
}

function listen(view) {
  const { root, maps, ways, sliders, everything, equal } = view.dom;
  // On a slide of their own the maps come into sight while the board keeps its size.
  watchWindow(view, [root, maps], { resized: dressUp, recalled: redraw });
  for (const family of FAMILIES) {
    const moved = () => moveTo(view, family, stopsOf(view, family)[Number(sliders[family].value)].key);
    listenTo(view, sliders[family], "input", moved);
    listenTo(view, ways[family], "change", () => chooseWay(view, family, ways[family].value));
  }
  listenTo(view, everything, "change", () => {
    view.all = everything.checked;
    changed(view);
  });
  listenTo(view, equal, "click", () => {
    const [family, rung] = evenedOut(view);
    moveTo(view, family, rung.key);
    sliders[family].focus();
  });
  listenTo(view, maps, "keydown", (event) => onMapKey(view, event));
}

function moveTo(view, family, key) {
  view.at[family] = key;
  view.active = family;
  changed(view);
}

/** Another way of sharing keeps the size as near as it has one. */
function chooseWay(view, family, way) {
  const { numbers } = current(view, family);
  view.way[family] = way;
  view.at[family] = nearest(stopsOf(view, family), numbers).key;
  view.active = family;
  changed(view);
}

function changed(view) {
  paint(view);
  remember(view);
}

// ---------------------------------------------------------------------------------------------------------------
// Message -> scene

function decode(bytes) {
  const [scene, start] = openMessage(bytes, 4);
  // A Uint16Array needs an aligned start, which a message inside a larger buffer may not have.
  const numbers = new Uint16Array(bytes.slice(start).buffer);
  scene.side = scene.labels.length;
  const cells = scene.side ** 2;
  for (const rung of scene.rungs) {
    rung.weights = rung.map === null ? null : numbers.subarray(rung.map * cells, (rung.map + 1) * cells);
  }
  scene.shipped = scene.rungs.find((rung) => rung.family === SHIPPED);
  return scene;
}

/** The ways of a family that something was measured or traced for, as [id, name, drawn unasked]. */
function waysOf(scene, family) {
  return scene[`${family}_ways`].filter(([way]) => rungsOf(scene, family, way).length);
}

function rungsOf(scene, family, way) {
  return scene.rungs.filter((rung) => rung.family === family && rung.way === way);
}

/** A slider's stops, most numbers first; they begin with the model as shipped unless a latent of full size does. */
function stopsOf(view, family) {
  const found = rungsOf(view.scene, family, view.way[family]).toSorted(
    (one, other) => other.numbers - one.numbers || Number.parseInt(one.key, 10) - Number.parseInt(other.key, 10),
  );
  return found[0]?.numbers === view.scene.full ? found : [view.scene.shipped, ...found];
}

function current(view, family) {
  return stopsOf(view, family).find((rung) => rung.key === view.at[family]);
}

function nearest(stops, numbers) {
  const away = (rung) => Math.abs(Math.log(rung.numbers / numbers));
  return stops.reduce((best, rung) => (away(rung) < away(best) ? rung : best));
}

/** The move that gives both the same memory: [family, rung], or null when they have it or cannot. */
function evenedOut(view) {
  const [share, latent] = FAMILIES.map((family) => current(view, family));
  if (share.numbers === latent.numbers) return null;
  const other = view.active === "share" ? "latent" : "share";
  for (const [family, goal] of [[other, other === "latent" ? share : latent], ["latent", share]]) {
    const rung = stopsOf(view, family).find((stop) => stop.numbers === goal.numbers);
    if (rung) return [family, rung];
  }
  return null;
}

// ---------------------------------------------------------------------------------------------------------------
// Words and numbers

function nameOfWay(scene, rung) {
  if (rung.family === SHIPPED) return "as shipped";
  return scene[`${rung.family}_ways`].find(([way]) => way === rung.way)[1];
}

function heads(count) {
  return count === 1 ? "1 K/V head" : `${count} K/V heads`;
}

function kindOf(scene, kvHeads) {
  if (kvHeads === scene.n_heads) return "MHA";
  return kvHeads === 1 ? "MQA" : "GQA";
}

/** What a rung is, for a title: "Averaged to 1 K/V head". */
function titleOf(scene, rung) {
  if (rung.family === SHIPPED) return "As shipped";
  const name = nameOfWay(scene, rung);
  const words = rung.family === "share" ? `${name}: ${heads(Number(rung.key))}` : `${name}: ${rung.key} numbers`;
  const short = {
    mean: `averaged to ${heads(Number(rung.key))}`,
    aligned: `aligned, averaged to ${heads(Number(rung.key))}`,
    whitened: `latent of ${rung.key}`,
  };
  return capital(short[rung.way] ?? words);
}

function capital(words) {
  return words.charAt(0).toUpperCase() + words.slice(1);
}

function readQuality(scene, rung) {
  if (!rung.quality) return "not measured";
  return readValue(scene, rung.quality.value);
}

function readValue(scene, value) {
  if (scene.kind === "encoder") return isSame(scene, value) ? "1.0000" : value.toFixed(3);
  return value < 100 ? value.toFixed(1) : Math.round(value).toLocaleString("en-US");
}

/** Whether a quality equals the original's to four digits. */
function isSame(scene, value) {
  const whole = scene.kind === "encoder" ? 1 : scene.shipped.quality?.value;
  return whole !== undefined && value.toPrecision(SAME_DIGITS) === whole.toPrecision(SAME_DIGITS);
}

function signed(number) {
  const text = Math.abs(number).toFixed(2);
  if (text === "0.00") return "±0.00";
  return number < 0 ? `−${text}` : `+${text}`;
}

/** A token as one reads it: without its leading space, line breaks visible. */
function token(text) {
  const shown = text.replaceAll("\n", "⏎").trim();
  if (shown === "") return "␣";
  return /[\p{L}\p{N}⏎]/u.test(shown) ? shown : `“${shown}”`;
}

function bytesOf(scene, rung) {
  const verb = rung.family === SHIPPED && scene.kind === "decoder" ? "cached" : "would be cached";
  return `${rung.readable} a token ${verb}`;
}

function flops(count) {
  for (const [unit, size] of [["GFLOP", 1e9], ["MFLOP", 1e6], ["kFLOP", 1e3]]) {
    if (count >= size) return `${(count / size).toPrecision(3).replace(/\.0+$/u, "")} ${unit}`;
  }
  return `${count} FLOP`;
}

/** The state in one or two short sentences, also for listeners. */
function stateOf(view) {
  const { scene } = view;
  const part = (rung) => {
    if (rung.family === SHIPPED) return null;
    const same = rung.quality && isSame(scene, rung.quality.value) ? ", identical to 4 digits on this text" : "";
    return `${titleOf(scene, rung)} (${rung.numbers} numbers, ${rung.badge}): ${scene.measure.name} ${readQuality(scene, rung)}${same}.`;
  };
  const parts = FAMILIES.map((family) => part(current(view, family))).filter(Boolean);
  return [...parts, `As shipped (${scene.full}): ${readQuality(scene, scene.shipped)}.`];
}

// ---------------------------------------------------------------------------------------------------------------
// Memory: the URL's l.* parameters, mirrored in sessionStorage

/** Takes over kept parameters; true when there were any. `settle` mends what this scene has not. */
function recall(view, kept) {
  for (const family of FAMILIES) {
    if (kept.has(family)) view.at[family] = kept.get(family);
    if (kept.has(`${family}_way`)) view.way[family] = kept.get(`${family}_way`);
  }
  if (FAMILIES.includes(kept.get("here"))) view.active = kept.get("here");
  if (kept.has("all")) view.all = kept.get("all") === "true";
  return kept.size > 0;
}

/** Writes what the person chose. */
function remember(view) {
  if (!canRemember()) return;
  const { start } = view.scene;
  const chosen = {
    share: [view.at.share, start.share],
    latent: [view.at.latent, start.latent],
    share_way: [view.way.share, "mean"],
    latent_way: [view.way.latent, "whitened"],
    here: [view.active, "share"],
    all: [String(view.all), "false"],
  };
  keepParameters(chosen, view.scene.model);
}

// ---------------------------------------------------------------------------------------------------------------
// Building (text always goes in through textContent)

function draw(tag, { text, ...attributes } = {}, children = []) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  node.append(...children);
  return node;
}

function build() {
  const dom = { sliders: {}, ways: {}, outputs: {} };
  const names = { share: "Share heads", latent: "Latent" };
  const controls = FAMILIES.map((family) => {
    const id = `hsl-${family}`;
    dom.sliders[family] = el("input", { type: "range", id, min: 0, step: 1, className: "hsl-range" });
    dom.ways[family] = el("select", { "aria-label": family === "share" ? "Way of sharing" : "Kind of latent" });
    dom.outputs[family] = el("output", { for: id });
    return el("div", { className: `hsl-control hsl-${family}` }, [
      el("label", { for: id, text: names[family] }),
      dom.ways[family],
      dom.sliders[family],
      dom.outputs[family],
    ]);
  });
  dom.chart = draw("svg", { role: "img" });
  dom.everything = el("input", { type: "checkbox", id: "hsl-all" });
  dom.state = el("p", { className: "hsl-state", role: "status", "aria-live": "polite" });
  dom.note = el("p", { className: "hsl-note" });
  dom.groups = el("div", { className: "hsl-groups" });
  dom.chartTitle = el("h3", {});
  const chart = el("div", { className: "hsl-card hsl-chart" }, [
    el("div", { className: "hsl-head" }, [
      dom.chartTitle,
      el("label", { className: "hsl-check" }, [dom.everything, el("span", { text: "More ways" })]),
    ]),
    dom.chart,
    dom.note,
  ]);
  dom.fatesTitle = el("h3", {});
  dom.equal = el("button", { type: "button" });
  dom.fates = el("div", { className: "hsl-fates" });
  dom.mapsTitle = el("h3", {});
  dom.legend = el("div", { className: "hsl-legend" }, [
    el("span", { text: "weight 0" }), el("i", { className: "hsl-weights" }), el("span", { text: "1" }),
    el("span", { text: "difference −1" }), el("i", { className: "hsl-differences" }), el("span", { text: "+1" }),
  ]);
  dom.maps = el("div", {
    className: "hsl-maps", tabindex: 0, role: "application",
    "aria-label": "Maps of the chosen head: arrow keys move the marked cell",
  });
  dom.cell = el("p", { className: "hsl-cell", role: "status", "aria-live": "polite" });
  dom.problem = el("p", { className: "hsl-note", hidden: "" });
  dom.body = el("div", { className: "hsl-body" }, [
    el("div", { className: "hsl-controls" }, controls),
    dom.state,
    el("div", { className: "hsl-top" }, [chart, dom.groups]),
    el("div", { className: "hsl-head" }, [dom.fatesTitle, dom.equal]),
    dom.fates,
    el("div", { className: "hsl-head hsl-maps-head" }, [dom.mapsTitle, dom.legend]),
    dom.maps,
    dom.cell,
  ]);
  dom.root = el("section", { className: "hsl", "aria-label": "The ladder" }, [dom.problem, dom.body]);
  return dom;
}

function buildWays(view) {
  view.dom.everything.checked = view.all;
  for (const family of FAMILIES) {
    const select = view.dom.ways[family];
    const ways = waysOf(view.scene, family);
    const options = (chosen) => chosen.map(([way, name]) => el("option", { value: way, text: name }));
    const more = ways.filter(([, , main]) => !main);
    select.replaceChildren(
      ...options(ways.filter(([, , main]) => main)),
      ...(more.length ? [el("optgroup", { label: "More ways" }, options(more))] : []),
    );
    select.value = view.way[family];
    select.disabled = ways.length < 2;
  }
}

/** The three drawings of who reads whose keys and values; positions are set by paintGroups. */
function buildGroups(view) {
  const { scene, dom } = view;
  dom.drawings = Object.fromEntries(
    [SHIPPED, ...FAMILIES].map((family) => {
      const queries = Array.from({ length: scene.n_heads }, (_, head) => el("span", { className: "hsl-q", text: `Q${head}` }));
      const keys = Array.from({ length: scene.n_kv_heads }, (_, head) => el("span", { className: "hsl-kv" }));
      const latent = family === "latent" ? el("span", { className: "hsl-c" }) : null;
      const title = el("h4", { className: `hsl-ink-${family}` });
      const badge = el("span", { className: "hsl-badge" });
      const caption = el("p", { className: "hsl-caption" });
      const saved = el("i", {});
      const picture = el("div", { className: "hsl-picture", "aria-hidden": "true" }, [
        el("div", { className: "hsl-row" }, queries),
        ...(latent ? [el("div", { className: "hsl-row hsl-c-row" }, [latent])] : []),
        el("div", { className: "hsl-row hsl-kv-row" }, keys),
      ]);
      const card = el("div", { className: `hsl-card hsl-group hsl-of-${family}` }, [
        el("div", { className: "hsl-head" }, [title, badge]),
        picture,
        el("div", { className: "hsl-saved", "aria-hidden": "true" }, [saved]),
        caption,
      ]);
      return [family, { card, queries, keys, latent, title, badge, caption, saved }];
    }),
  );
  dom.groups.replaceChildren(...Object.values(dom.drawings).map(({ card }) => card));
}

// ---------------------------------------------------------------------------------------------------------------
// Looks

function readPalette(view) {
  const { read, readAll, font } = readStyle(view);
  const [weights, differences] = ["w", "d"].map((letter) => scaleOf(read, letter).map(asCss));
  return { weights, differences, inks: readAll(["text", "muted", "void", "accent", "card"]), font };
}

/** Everything that depends on size or theme, and the picture itself. */
function dressUp(view) {
  const { root } = view.dom;
  if (!view.scene || !root.clientWidth) return;
  root.dataset.theme = isDark(view) ? "dark" : "light";
  root.dataset.size = root.clientWidth >= 900 ? "wide" : root.clientWidth < 640 ? "phone" : "middle";
  view.palette = readPalette(view);
  paint(view);
}

// ---------------------------------------------------------------------------------------------------------------
// Painting

function paint(view) {
  const { root, state } = view.dom;
  if (!view.scene || !root.clientWidth || !root.isConnected) return;
  paintControls(view);
  paintChart(view);
  paintGroups(view);
  paintFates(view);
  paintMaps(view);
  const sentences = stateOf(view);
  if (state.textContent !== sentences.join(" ")) {
    state.replaceChildren(...sentences.flatMap((sentence, at) => [at ? " " : "", el("span", { text: sentence })]));
  }
  const [share, latent] = FAMILIES.map((family) => current(view, family));
  Object.assign(root.dataset, { share: share.key, latent: latent.key, shareWay: view.way.share, latentWay: view.way.latent });
  view.painted += 1;
  root.dataset.painted = String(view.painted);
}

function paintControls(view) {
  const { scene, dom } = view;
  for (const family of FAMILIES) {
    const stops = stopsOf(view, family);
    const at = stops.findIndex((rung) => rung.key === view.at[family]);
    const rung = stops[at];
    const slider = dom.sliders[family];
    slider.max = String(stops.length - 1);
    slider.value = String(at);
    slider.disabled = stops.length < 2;
    slider.style.setProperty("--hs-part", `${(100 * at) / Math.max(1, stops.length - 1)}%`);
    // The slider, its cards and its curve share one colour, that of the way chosen.
    dom.root.style.setProperty(`--hs-${family}-ink`, `var(--hs-${inkOf({ family, way: view.way[family] })})`);
    dom.ways[family].value = view.way[family];
    const from = family === "share" ? scene.n_kv_heads : scene.full;
    const now = rung.family === SHIPPED ? null : rung.key;
    const unit = family === "share" ? "K/V heads" : "numbers";
    dom.outputs[family].replaceChildren(
      ...(now === null || now === String(from)
        ? [el("b", { text: String(from) }), ` ${unit}, as shipped`]
        : [`${from} → `, el("b", { text: now }), ` ${family === "share" && now === "1" ? "K/V head" : unit}`]),
    );
    slider.setAttribute("aria-valuetext", `${titleOf(scene, rung)}, ${rung.numbers} numbers cached, ${scene.measure.name} ${readQuality(scene, rung)}`);
  }
}

function inkOf(rung) {
  if (rung.family === "latent" && rung.way === "healed") return INKS["latent healed"];
  return INKS[rung.way] ?? "muted";
}

// The chart

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

// Head groups

function paintGroups(view) {
  const { scene, dom } = view;
  for (const family of [SHIPPED, ...FAMILIES]) {
    const rung = family === SHIPPED ? scene.shipped : current(view, family);
    const drawing = dom.drawings[family];
    const shared = rung.family === "share" ? Number(rung.key) : scene.n_kv_heads;
    const members = scene.n_kv_heads / shared;
    const queriesEach = scene.n_heads / scene.n_kv_heads;
    drawing.queries.forEach((chip, head) => {
      const group = Math.floor(Math.floor(head / queriesEach) / members);
      chip.dataset.tint = String(group % 3);
    });
    drawing.keys.forEach((block, head) => {
      const group = Math.floor(head / members);
      block.style.left = `${(100 * group) / shared}%`;
      block.style.width = `${100 / shared}%`;
      block.dataset.tint = String(group % 3);
      const name = shared > 6 ? `KV${group}` : rung.family === "latent" ? `K${group} V${group}` : `K V ${group}`;
      block.textContent = head % members === 0 ? name : "";
      block.toggleAttribute("data-over", head % members !== 0);
      block.toggleAttribute("data-rebuilt", rung.family === "latent");
    });
    if (drawing.latent) {
      const part = rung.numbers / scene.full;
      drawing.latent.style.width = `${100 * part}%`;
      drawing.latent.replaceChildren(el("b", { text: "C" }), el("span", { text: `${rung.numbers} numbers cached` }));
      drawing.latent.parentElement.hidden = rung.family === SHIPPED;
      drawing.latent.toggleAttribute("data-small", part < 0.4);
    }
    const kind = rung.family === "latent" ? "like MLA" : kindOf(scene, shared);
    drawing.title.textContent = `${titleOf(scene, rung)}: ${kind}, ${rung.numbers} numbers`;
    drawing.badge.textContent = rung.badge === "as shipped" ? "as shipped" : rung.badge;
    drawing.badge.hidden = rung.family === SHIPPED;
    drawing.badge.dataset.badge = rung.badge;
    drawing.saved.style.width = `${(100 * rung.bytes) / scene.shipped.bytes}%`;
    drawing.caption.textContent = captionOf(scene, rung, shared);
  }
}

function captionOf(scene, rung, shared) {
  const each = scene.n_heads / shared;
  const said = `${capital(bytesOf(scene, rung))}, ${scene.n_layers} layers at 16 bit.`;
  if (rung.family === "latent") {
    const cost = `Reading ${scene.seq_len.toLocaleString("en-US")} tokens in a layer: ${flops(rung.cost.rebuild)} to rebuild, ${flops(rung.cost.scores)} to attend.`;
    return `Still one K for each original K/V head, rebuilt at each read. ${said} ${cost}`;
  }
  const who = each === 1 ? "Every query head has its own keys and values." : `${each} query heads share each K/V head.`;
  const alike = rung.way?.endsWith("-alike") ? " Who joins whom differs by layer; drawn as neighbours." : "";
  return `${who} ${said}${alike}`;
}

// Three fates

function paintFates(view) {
  const { scene, dom } = view;
  const [share, latent] = FAMILIES.map((family) => current(view, family));
  const same = share.numbers === latent.numbers;
  const move = evenedOut(view);
  dom.fatesTitle.textContent = same
    ? `Same memory, two fates: ${share.numbers} of ${scene.full} numbers`
    : `Two settings: ${share.numbers} and ${latent.numbers} of ${scene.full} numbers`;
  dom.equal.hidden = move === null;
  if (move) dom.equal.textContent = `Same memory for both: ${move[1].numbers} numbers`;
  dom.fates.replaceChildren(...[scene.shipped, share, latent].map((rung, at) => fate(view, rung, [SHIPPED, ...FAMILIES][at])));
}

function fate(view, rung, family) {
  const { scene } = view;
  const head = el("div", { className: "hsl-head" }, [
    el("h4", { className: `hsl-ink-${family}`, text: titleOf(scene, rung) }),
    el("span", { className: "hsl-badge", text: rung.badge, "data-badge": rung.badge }),
  ]);
  const inside = rung.map === null
    ? [el("p", { className: "hsl-note", text: "This way was measured on the texts only, not on your sentence." })]
    : scene.kind === "decoder" ? nextWords(scene, rung) : likeness(scene, rung);
  return el("div", { className: `hsl-card hsl-fate hsl-of-${family}` }, [head, ...inside]);
}

function nextWords(scene, rung) {
  const [first, chance] = rung.next[0];
  const text = scene.text.length > 90 ? `…${scene.text.slice(-88)}` : scene.text;
  const goesOn = rung.written.map(([word]) => word).join("").replaceAll("\n", "⏎");
  return [
    el("p", { className: "hsl-sentence" }, [
      el("bdi", { text }), " ",
      el("b", {}, [el("bdi", { text: token(first) })]), ` · ${percent(chance)}`,
    ]),
    el("ul", { className: "hsl-bars" }, rung.next.map(([word, share]) => bar(token(word), share, percent(share), null))),
    el("p", { className: "hsl-note hsl-written" }, ["Goes on: ", el("bdi", { text: goesOn.trim() || "(ends here)" })]),
  ];
}

function likeness(scene, rung) {
  const same = rung !== scene.shipped && rung.cosine.toFixed(4) === "1.0000";
  const value = rung === scene.shipped ? "1" : same ? "1.0000" : rung.cosine.toFixed(3);
  return [
    el("p", { className: "hsl-sentence" }, ["Likeness to its own original: ", el("b", { text: value })]),
    el("p", { className: "hsl-note", text: same ? "Identical to 4 digits on this text. Likeness to other sentences:" : "Likeness to other sentences (the mark: as shipped):" }),
    el("ul", { className: "hsl-bars hsl-others" }, scene.compared_with.map((sentence, at) =>
      bar(sentence, Math.max(0, rung.similar[at]), rung.similar[at].toFixed(2).replace("-", "−"), Math.max(0, scene.shipped.similar[at])))),
  ];
}

function bar(name, share, value, mark) {
  const fill = el("i", {});
  fill.style.width = `${100 * Math.min(1, share)}%`;
  const track = el("span", { className: "hsl-track" }, [fill]);
  if (mark !== null) {
    const line = el("s", {});
    line.style.left = `${100 * mark}%`;
    track.append(line);
  }
  return el("li", {}, [el("bdi", { className: "hsl-name", text: name, title: name }), track, el("span", { text: value })]);
}

// Maps

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
