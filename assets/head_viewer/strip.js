// The head viewer: F, the recipe of the focused word, and the table twin.

function paintStrip(view, focus, row) {
  const { dom, scene } = view;
  const name = scene.main.labels[focus.query];
  dom.recipeOf.replaceChildren("new ", word(name, "hs-query"), " =");
  if (!row) {
    dom.stack.replaceChildren();
    return;
  }
  const key = focus.key ?? row.top;
  dom.why.textContent = `Why ${percent(row.weights[key])}?`;
  const parts = recipe(scene.main, row.raw);
  dom.stack.replaceChildren(...parts.map((part, index) => segment(view, part, index, dom.stack.clientWidth)));
  const spoken = parts.map(({ weight, name: of }) => `${fraction(weight)} ${of}`).join(" + ");
  dom.stack.setAttribute("aria-label", `new ${name} = ${spoken}`);
}

/** The row's parts, strongest first, until what is left is small; the remainder is one part, so the sum stays 1. */
function recipe(trace, row) {
  const keys = strongest(row, 92, 7);
  const parts = keys.map((key) => ({ weight: row[key], name: `V(${trace.labels[key]})` }));
  const total = row.reduce((sum, weight) => sum + weight, 0);
  const rest = total - parts.reduce((sum, { weight }) => sum + weight, 0);
  return rest > 0.0005 ? [...parts, { weight: rest, name: "rest" }] : parts;
}

function segment(view, { weight, name }, index, width) {
  const dark = isDarkNow(view);
  const shades = SHADES[dark ? "dark" : "light"];
  const strength = name === "rest" ? 12 : shades[Math.min(index, shades.length - 1)];
  const node = el("span", { text: `${fraction(weight)} ${name}`, dir: "auto", title: `${fraction(weight)} ${name}` });
  node.style.width = `${weight * 100}%`;
  node.style.background = `color-mix(in srgb, var(--hs-value) ${strength}%, var(--hs-ground))`;
  node.style.color = strength > 70 ? (dark ? "#0e1117" : "#ffffff") : "var(--hs-text)";
  const room = weight * width - 14;
  if (room < 7 * node.textContent.length) node.textContent = room < 24 ? "" : fraction(weight);
  return node;
}

// ---------------------------------------------------------------------------------------------------------------
// The table twin

function scheduleTable(view) {
  const focus = focusOf(view);
  const name = [focus.layer, focus.head, focus.query, view.options.hide, view.options.renorm].join(" ");
  if (name === view.tableName && view.tableScene === view.scene) return;
  clearTimeout(view.tableTimer);
  view.tableTimer = setTimeout(() => {
    view.tableName = name;
    view.tableScene = view.scene;
    fillTable(view, focusOf(view));
  }, 120);
}

function fillTable(view, focus) {
  const { main } = view.scene;
  const row = shownRow(view, main, focus.layer, focus.head, focus.query);
  if (!row) return;
  const caption = el("caption", {}, [
    word(main.labels[focus.query], "hs-query"),
    ` looks at, in layer ${focus.layer}, head ${focus.head}`,
  ]);
  const head = ["Position", "Key", "Share"].map((text) => el("th", { scope: "col", text }));
  const lines = main.labels.map((label, key) =>
    el("tr", {}, [
      el("td", { text: String(key) }),
      el("th", { scope: "row", text: label, dir: "auto" }),
      el("td", { text: tableValue(view, main, focus, row, key) }),
    ]),
  );
  view.dom.tableBox.replaceChildren(
    el("table", {}, [caption, el("thead", {}, [el("tr", {}, head)]), el("tbody", {}, lines)]),
  );
}

function tableValue(view, trace, focus, row, key) {
  if (trace.causal && key > focus.query) return "masked";
  if (view.options.hide && row.hidden[key]) return `hidden (${percent(row.raw[key])})`;
  return percent(row.weights[key]);
}

function toggleTable(view) {
  const { table, tableBox } = view.dom;
  const open = tableBox.classList.toggle("hs-aside") === false;
  table.setAttribute("aria-expanded", String(open));
  tableBox.tabIndex = open ? 0 : -1;
}

function toggleChecks(view) {
  const { checks, pop } = view.dom;
  pop.hidden = !pop.hidden;
  checks.setAttribute("aria-expanded", String(!pop.hidden));
}
