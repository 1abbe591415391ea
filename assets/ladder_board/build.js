// The ladder board: its elements (text always goes in through textContent).

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
