// The head viewer: its elements (text always goes in through textContent).

function word(text, role = "") {
  return el("bdi", { className: role, text, dir: "auto", title: text });
}

function build(view) {
  const dom = {};
  dom.problem = el("p", { className: "hs-notices", role: "status", hidden: true });
  dom.body = el("div", { hidden: true }, [
    buildHeadline(view, dom),
    el("div", { className: "hs-desk" }, [
      (dom.cards = el("div", { className: "hs-cards", role: "group", "aria-label": "Heads with a job" })),
      buildHeadPanel(view, dom),
      buildHeadsPanel(view, dom),
    ]),
    buildStrip(view, dom),
  ]);
  dom.root = el("section", { className: "hs", "aria-label": "Head viewer" }, [dom.problem, dom.body]);
  return dom;
}

function buildHeadline(view, dom) {
  dom.sentence = el("h2");
  dom.where = el("span", { className: "hs-where" });
  dom.lock = button("", "hs-lock", () => release(view), { title: "Release the lock (Esc)" });
  dom.swap = button("", "hs-pill", () => view.ask?.("ask", { action: "swap" }));
  dom.spoken = el("span", { className: "hs-aside", "aria-live": "polite" });
  dom.notices = el("p", { className: "hs-notices" });
  dom.headline = el("div", { className: "hs-headline" }, [
    dom.sentence,
    dom.where,
    dom.lock,
    el("span", { className: "hs-space" }),
    dom.swap,
    dom.spoken,
  ]);
  dom.hints = el("div", { className: "hs-hints", role: "group", "aria-label": "First steps" });
  return el("div", {}, [dom.headline, dom.hints, dom.notices]);
}

function buildHeadPanel(view, dom) {
  const choose = (name) => button(name === "arcs" ? "Arcs" : "Map", "", () => setOption(view, "view", name));
  dom.views = { arcs: choose("arcs"), map: choose("map") };
  dom.table = button("Table", "hs-link", () => toggleTable(view), { "aria-expanded": "false" });
  dom.cut = el("input", { type: "range", min: 30, max: 100, step: 5, "aria-label": "Cut-off in percent" });
  dom.cut.addEventListener("input", () => setOption(view, "cut", Number(dom.cut.value)));
  dom.cutOut = el("output");
  dom.scale = el(
    "select",
    { "aria-label": "Colour scale" },
    Object.entries(SCALES).map(([value, { label }]) => el("option", { value, text: label })),
  );
  dom.scale.addEventListener("change", () => setOption(view, "scale", dom.scale.value));
  dom.cutLabel = el("label", {}, [
    el("span", { className: "hs-long", text: "Strongest arcs covering" }),
    el("span", { className: "hs-short", text: "Arcs covering" }),
    dom.cut,
    dom.cutOut,
  ]);
  dom.legendEnd = el("span");
  dom.legendStart = el("span");
  dom.legend = el("span", { className: "hs-legend" }, [dom.legendStart, el("i"), dom.legendEnd]);
  dom.panes = el("div", { className: "hs-panes" });
  dom.tableBox = el("div", { className: "hs-table hs-aside", role: "region", "aria-label": "The row as a table" });
  dom.wait = el("p", { className: "hs-wait", role: "status", hidden: true });
  dom.stage = el("div", { className: "hs-panel hs-c" }, [
    el("span", { className: "hs-switch", role: "group", "aria-label": "Picture" }, Object.values(dom.views)),
    el("div", { className: "hs-bar hs-choices" }, [dom.cutLabel, dom.legend, dom.scale]),
    dom.table,
    dom.panes,
    dom.tableBox,
    dom.wait,
  ]);
  return dom.stage;
}

function buildHeadsPanel(view, dom) {
  dom.resting = el("p");
  dom.hide = button("", "hs-link", () => setOption(view, "hide", !view.options.hide));
  dom.renorm = el("input", { type: "checkbox" });
  dom.renorm.addEventListener("change", () => setOption(view, "renorm", dom.renorm.checked));
  dom.renormLabel = el("label", {}, [dom.renorm, "scale the rest to 100 %"]);
  dom.layerName = el("b");
  dom.layerNav = el("div", { className: "hs-layer-nav" }, [
    button("‹", "", () => step(view, { layer: -1 }), { "aria-label": "Previous layer" }),
    dom.layerName,
    button("›", "", () => step(view, { layer: 1 }), { "aria-label": "Next layer" }),
  ]);
  dom.gridTop = el("div", { className: "hs-grid-top", "aria-hidden": "true" });
  dom.grid = el("canvas", { role: "img" });
  dom.gridSpacer = el("div", {}, [dom.gridTop, dom.grid]);
  dom.gridScroll = el("div", { className: "hs-scroll hs-grid" }, [dom.gridSpacer]);
  dom.gridScroll.addEventListener("scroll", () => repaint(view), { passive: true });
  dom.grid.addEventListener("pointermove", (event) => onGridMove(view, event));
  dom.grid.addEventListener("pointerleave", () => preview(view, null));
  dom.grid.addEventListener("click", (event) => onGridClick(view, event));
  dom.heads = el("div", { className: "hs-panel hs-e" }, [
    el("div", { className: "hs-bar" }, [dom.resting, dom.renormLabel, dom.hide]),
    dom.layerNav,
    dom.gridScroll,
  ]);
  return dom.heads;
}

function buildStrip(view, dom) {
  dom.recipeOf = el("p");
  dom.stack = el("div", { className: "hs-stack", role: "img" });
  dom.checks = button("", "hs-link", () => toggleChecks(view), { "aria-expanded": "false" });
  dom.why = button("", "hs-link", () => {
    lockHere(view);
    view.ask?.("ask", { action: "why" });
  });
  dom.twin = button("Untrained twin", "hs-link", () => {
    view.ask?.("ask", { action: "twin", on: view.scene.second?.role !== "twin" });
  });
  dom.checkList = el("ul");
  dom.pop = el("div", { className: "hs-pop", role: "region", "aria-label": "Checks", hidden: true }, [
    el("b", { text: "Checks on this very picture" }),
    dom.checkList,
  ]);
  dom.strip = el("details", { className: "hs-f" }, [
    el("summary", { text: "What the word becomes, checks, twin" }),
    el("div", { className: "hs-recipe" }, [dom.recipeOf, dom.stack, dom.checks, dom.why, dom.twin]),
    dom.pop,
  ]);
  return dom.strip;
}

/** Everything that depends on the scene, the size or the theme, but not on the selection. */
function dressUp(view) {
  const { root, strip, swap, twin, why, checks, notices } = view.dom;
  const width = root.clientWidth;
  if (!view.scene || !width) return;
  root.dataset.theme = isDark(view) ? "dark" : "light";
  root.dataset.cards = view.scene.cards.length;
  const size = width >= 900 ? "wide" : width < 700 ? "phone" : "middle";
  if (root.dataset.size !== size) {
    root.dataset.size = size;
    strip.open = size !== "phone";
  }
  const rows = clamp(view.scene.main.size, 6, 12);
  root.style.setProperty("--hs-c-height", `${size === "phone" ? rows * 44 + 172 : 480}px`);
  if (!view.palette) {
    view.palette = readPalette(view);
    view.thumbs.clear();
  }
  swap.hidden = !view.scene.swap || !view.ask;
  swap.textContent = view.scene.swap ?? "";
  twin.hidden = why.hidden = !view.ask;
  twin.setAttribute("aria-pressed", String(view.scene.second?.role === "twin"));
  checks.hidden = view.scene.checks.length === 0;
  notices.hidden = view.scene.notices.length === 0;
  notices.textContent = view.scene.notices.join(" ");
  dressChecks(view);
}

function dressChecks(view) {
  const { checks, checkList } = view.dom;
  const failed = view.scene.checks.filter(([, , good]) => !good).length;
  const total = view.scene.checks.length;
  checks.className = `hs-link ${failed ? "hs-bad" : "hs-good"}`;
  checks.textContent = failed
    ? `✗ ${failed} of ${total} checks failed`
    : `✓ ${total} ${total === 1 ? "check" : "checks"} passed`;
  checkList.replaceChildren(
    ...view.scene.checks.map(([name, value, good]) =>
      el("li", {}, [
        el("b", { className: good ? "hs-good" : "hs-bad", text: good ? "✓" : "✗" }),
        el("span", { text: name }),
        el("span", { className: "hs-small", text: value }),
      ]),
    ),
  );
}

function buildCards(view) {
  const { cards } = view.dom;
  cards.hidden = view.scene.cards.length === 0;
  cards.replaceChildren(...view.scene.cards.map((card) => buildCard(view, card)));
  const average = view.scene.average && buildAverage(view.scene);
  if (average && view.scene.cards.length) cards.append(average);
}

function buildCard(view, card) {
  const { main } = view.scene;
  const row = rawRow(main, card.layer, card.head, card.query);
  const top = largest(row);
  const meter = el("span", { className: "hs-meter" }, [el("i"), el("b", { text: percent(row[top]) })]);
  meter.style.setProperty("--share", `${row[top] * 100}%`);
  const press = () => select(view, { layer: card.layer, head: card.head, query: card.query, key: null });
  const node = el("button", { type: "button", className: "hs-card", on: { click: press } }, [
    el("span", { className: "hs-card-top" }, [
      el("b", { text: card.title }),
      el("span", { className: "hs-small", text: `L${card.layer} H${card.head}` }),
    ]),
    el("span", { className: "hs-answer" }, [
      el("span", { className: "hs-fact" }, [
        word(main.labels[card.query], "hs-query"),
        " looks at ",
        word(main.labels[top], "hs-key"),
      ]),
      meter,
    ]),
    el("span", { className: "hs-evidence", text: card.evidence }),
  ]);
  node.dataset.card = card.id;
  return node;
}

/** The fourth card: what is left when one head has to give the mean of all answers. */
function buildAverage(scene) {
  const { main, average } = scene;
  const mean = new Float32Array(main.size);
  for (const [layer, head] of average.heads) {
    const row = rawRow(main, layer, head, average.query);
    for (let key = 0; key < main.size; key += 1) mean[key] += row[key] / average.heads.length;
  }
  const [first, second = first] = strongest(mean, 100, 2);
  const count = ["no", "one", "two", "three", "four"][average.heads.length] ?? average.heads.length;
  const share = (key) => ` ${Math.round(mean[key] * 100)}`;
  return el("div", { className: "hs-average" }, [
    el("b", { text: `Average of the ${count}` }),
    el("span", { className: "hs-fact" }, [
      word(main.labels[average.query], "hs-query"),
      ": ",
      word(main.labels[first], "hs-key"),
      `${share(first)}, `,
      word(main.labels[second], "hs-key"),
      `${share(second)}: blurred`,
    ]),
    el("span", {
      className: "hs-evidence",
      text: `one head would have to answer all ${count} at once; concat keeps ${count} answers apart`,
    }),
  ]);
}

/** One pane per trace: scrolling box, canvas that stays in view, and the words as real elements. */
function buildPanes(view) {
  const old = view.panes;
  if (old.length === view.scene.traces.length) {
    view.scene.traces.forEach((trace, index) => dressPane(old[index], trace, view));
    return;
  }
  view.panes = view.scene.traces.map((trace, index) => dressPane(buildPane(view, index), trace, view));
  view.dom.panes.replaceChildren(...view.panes.map((pane) => pane.node));
}

function buildPane(view, index) {
  const pane = { index, words: new Map(), drawn: null, target: null };
  pane.title = el("p", { className: "hs-pane-title" });
  pane.queryTitle = el("span");
  pane.keyTitle = el("span");
  pane.titles = el("div", { className: "hs-titles" }, [pane.queryTitle, pane.keyTitle]);
  pane.canvas = el("canvas", { "aria-hidden": "true" });
  pane.spacer = el("div", {}, [pane.canvas]);
  pane.scroll = el("div", { className: "hs-scroll", tabindex: "0", role: "application" }, [pane.spacer]);
  pane.scroll.addEventListener("scroll", () => repaint(view), { passive: true });
  pane.scroll.addEventListener("pointermove", (event) => onPaneMove(view, pane, event));
  pane.scroll.addEventListener("pointerleave", () => preview(view, null));
  pane.scroll.addEventListener("click", (event) => onPaneClick(view, pane, event));
  pane.node = el("div", { className: "hs-pane" }, [pane.title, pane.titles, pane.scroll]);
  return pane;
}

function dressPane(pane, trace, view) {
  const sameWords = pane.trace && pane.trace.size === trace.size;
  if (!sameWords) Object.assign(pane, { drawn: null, target: null });
  pane.trace = trace;
  clearWords(pane);
  pane.title.hidden = view.scene.traces.length < 2;
  pane.scroll.setAttribute(
    "aria-label",
    "The head. Arrow up and down: word. Left and right: head. Page up and down: layer. Enter locks, Escape releases.",
  );
  return pane;
}
