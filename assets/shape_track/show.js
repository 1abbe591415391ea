// The shape track: headline, cards, followed number and code.

/** Everything that depends on size or theme, and the picture itself. */
function refresh(view) {
  const { root } = view.dom;
  const width = root.clientWidth;
  if (!view.scene || !width) return;
  root.dataset.theme = isDark(view) ? "dark" : "light";
  root.dataset.size = width >= 900 ? "wide" : width < 700 ? "phone" : "middle";
  view.palette = readPalette(view);
  show(view);
  bringIntoView(view);
}

function show(view) {
  const { root } = view.dom;
  Object.assign(root.dataset, { step: view.step, letter: view.letter, pick: `${view.pick.key}:${view.pick.index}` });
  root.dataset.role = here(view).role;
  showHeadline(view);
  view.cards.forEach((card) => showCard(view, card));
  showCode(view);
  showFollow(view);
  view.cards.forEach((card) => paint(view, card));
  root.dataset.painted = String(Number(root.dataset.painted ?? 0) + 1);
}

function showHeadline(view) {
  const tensor = here(view);
  const { sentence, shapes } = view.dom;
  if (view.guess) {
    const target = view.scene.byKey.get(view.guess.target);
    sentence.replaceChildren(el("strong", { text: `Next: step ${target.number}, ${target.name}.` }), " Which shape comes out?");
  } else {
    sentence.replaceChildren(
      el("strong", { text: `Step ${tensor.number}, ${tensor.name}.` }),
      " ",
      ...prose(view, tensor.sentence),
    );
  }
  const parts = view.guess ? guessChain(view) : chain(view, tensor);
  shapes.replaceChildren(...parts);
  const beneath = [...shapes.querySelectorAll(".hst-under")].reduce((sum, name) => sum + name.textContent.length, 0);
  const letters = shapes.textContent.length - beneath;
  const room = view.dom.root.clientWidth;
  const most = view.dom.root.dataset.size === "phone" ? 34 : 54;
  shapes.style.fontSize = `${clamp(Math.floor(room / (letters * 0.56)), 17, most)}px`;
}

/** The sentence with every axis name in it lighting that axis. */
function prose(view, text) {
  return text.split(AXIS_IN_PROSE).map((piece, place) => {
    if (place % 2 === 0) return piece;
    const word = piece.toLowerCase().replace(/^queries$/u, "query").replace(/s$/u, "");
    const axis = word === "token" ? "seq" : word;
    return axisSpan(view, axis, piece, "hst-axis");
  });
}

function axisSpan(view, axis, text, className) {
  const node = el("span", { className, text, "data-axis": axis });
  node.addEventListener("pointerenter", () => lightAxis(view, axis));
  node.addEventListener("pointerleave", () => lightAxis(view, null));
  node.addEventListener("click", (event) => {
    event.stopPropagation();
    lightAxis(view, view.axis === axis ? null : axis);
  });
  return node;
}

function chain(view, tensor) {
  const sources = madeFrom(view.scene, tensor);
  if (sources.length > 1) {
    const [one, other] = sources;
    return [
      ...shapeParts(view, one, one.symbol),
      sign(" · "),
      ...shapeParts(view, other, other.symbol),
      sign(" → "),
      ...shapeParts(view, tensor, "", true),
    ];
  }
  const line = [tensor];
  while (line.length < 3) {
    const before = line[0].links ? madeFrom(view.scene, line[0]) : [];
    if (before.length !== 1) break;
    line.unshift(before[0]);
  }
  return line.flatMap((one, place) => [
    ...(place ? [sign(" → ")] : []),
    ...shapeParts(view, one, "", place === line.length - 1),
  ]);
}

function guessChain(view) {
  const target = view.scene.byKey.get(view.guess.target);
  const sources = madeFrom(view.scene, target);
  return [
    ...sources.flatMap((one, place) => [...(place ? [sign(" · ")] : []), ...shapeParts(view, one, one.symbol)]),
    sign(" → "),
    el("span", { className: "hst-now", text: "( ? )" }),
  ];
}

function sign(text) {
  return el("span", { className: "hst-sign", text });
}

/** (4, 2, 4) with each number lighting its axis and the axis' name beneath. */
function shapeParts(view, tensor, symbol = "", now = false) {
  const inner = tensor.shape.flatMap((length, axis) => {
    const name = tensor.axes[axis];
    const node = axisSpan(view, name, "", "hst-num");
    node.append(el("span", { text: String(length) }), el("span", { className: "hst-under", text: shortAxis(name) }));
    return axis ? [", ", node] : [node];
  });
  const children = ["(", ...inner, ")"];
  if (symbol) children.unshift(el("span", { className: "hst-symbol", text: `${symbol} ` }));
  return [el("span", { className: `hst-whole${now ? " hst-now" : ""}`, "data-role": tensor.role ?? "input" }, children)];
}

function shortAxis(name) {
  return name.includes("·") ? "columns" : name;
}

function showCard(view, card) {
  const tensor = shownIn(view, card);
  card.tensor = tensor;
  const on = tensor.key === view.step;
  const secret = isSecret(view, tensor);
  card.node.toggleAttribute("data-on", on);
  card.node.dataset.role = tensor.role;
  card.button.textContent = `${card.mark} ${on ? tensor.name : card.title}`;
  card.button.setAttribute("aria-current", on ? "step" : "false");
  card.choose.hidden = !on || card.parts.length < 2 || Boolean(view.guess);
  card.picks.forEach((pick, place) => pick.setAttribute("aria-pressed", String(card.parts[place].key === view.step)));
  card.frame.hidden = secret;
  card.hidden.hidden = !secret;
  card.line.textContent = secret ? "" : tensor.line[view.flavour === "torch" ? "torch" : "numpy"];
  card.shape.textContent = secret ? "( ? )" : shapeText(tensor.shape);
  if (!secret) labelCard(view, card, tensor);
}

function labelCard(view, card, tensor) {
  const kind = kindOf(tensor);
  const [rows, columns] = kind === "layers" ? [1, 2] : kind === "pieces" ? [0, 2] : [0, 1];
  const label = (axis) => axisLabel(view, tensor, axis);
  card.left.replaceChildren(label(rows));
  card.bottom.replaceChildren(label(columns));
  const third = kind === "layers" ? 0 : kind === "pieces" ? 1 : null;
  card.top.replaceChildren(...(third === null ? [] : [label(third)]));
  if (kind === "layers" && tensor.shape[0] > 1) {
    card.top.append(el("span", { className: "hst-front", text: `in front: ${axisWord(tensor.axes[0])} ${frontOf(view, tensor)}` }));
  }
  const words = tensor.axes.map((axis, at) => `${axis} ${tensor.shape[at]}`).join(", ");
  card.canvas.setAttribute("aria-label", `${tensor.symbol}: ${words}. ${counted(view.lit.get(tensor.key))} elements lit.`);
}

function axisLabel(view, tensor, axis) {
  const name = tensor.axes[axis];
  const text = name.includes("·") ? name.replace(/^n_/u, "") : `${name} = ${tensor.shape[axis]}`;
  const node = axisSpan(view, name, text, "hst-edge");
  node.toggleAttribute("data-lit", lights(view, name));
  node.title = `Axis ${axis}: ${name}, ${tensor.shape[axis]} long`;
  return node;
}

function showFollow(view) {
  const { dom, scene } = view;
  const { letters, element, story, next, back, play, guess, walk, buttons, facts } = dom;
  letters.forEach((one) => one.setAttribute("aria-pressed", String(one.dataset.letter === view.letter)));
  const tensor = scene.byKey.get(view.pick.key);
  const secret = Boolean(view.guess);
  element.replaceChildren(
    el("b", { text: inWords(tensor, single(tensor, view.pick.index)) }),
    ` = ${valueAt(view, view.pick)}`,
    ...tokenNote(view, tensor),
  );
  story.textContent = view.story;
  const path = pathOf(view);
  const at = path.findIndex((one) => one.key === view.step);
  next.textContent = at === path.length - 1 ? "First step ↺" : "Next step →";
  back.disabled = at === 0;
  play.textContent = view.timer ? "Pause" : "Play";
  play.setAttribute("aria-pressed", String(Boolean(view.timer)));
  guess.hidden = !secret;
  walk.hidden = buttons.hidden = secret;
  if (secret) {
    dom.guessLine.textContent = scene.byKey.get(view.guess.target).line[view.flavour];
    dom.guessSaid.textContent = view.guess.said;
  }
  const { seq_len, d_model, n_heads, n_kv_heads, d_head } = scene.sizes;
  const words = [`${seq_len} tokens`, `d_model ${d_model}`, `${n_heads} heads`, `${n_kv_heads} K/V heads`, `d_head ${d_head}`];
  facts.replaceChildren(
    `${words.join(" · ")} · causal ${scene.causal ? "on" : "off"} · ${scene.source}`,
    ...scene.notes.flatMap((note) => [el("br"), note]),
  );
}

/** Which words the chosen element's tokens are, where there is a text. */
function tokenNote(view, tensor) {
  if (!view.scene.tokens.length) return [];
  const words = tensor.axes.flatMap((axis, at) =>
    ["seq", "query", "key"].includes(axis) ? [`${axisWord(axis)} ${view.pick.index[at]} is “${view.scene.tokens[view.pick.index[at]]}”`] : [],
  );
  return words.length ? [el("span", { className: "hst-token", text: ` (${words.join(", ")})` })] : [];
}

// ---------------------------------------------------------------------------------------------------------------
// Code

function buildCode(view) {
  const { text } = view.scene.code[view.flavour];
  view.dom.lines.replaceChildren(
    ...text.trimEnd().split("\n").map((line) => el("span", { className: "hst-row" }, codeParts(line))),
  );
}

function codeParts(line) {
  const at = line.indexOf("#");
  if (at < 0) return [line || " "];
  return [line.slice(0, at), el("span", { className: "hst-comment", text: line.slice(at) })];
}

function showCode(view) {
  const { flavours, lines, memory } = view.dom;
  flavours.forEach((one) => one.setAttribute("aria-pressed", String(one.dataset.flavour === view.flavour)));
  const { lines: places, text } = view.scene.code[view.flavour];
  const rows = [...lines.children];
  const written = text.trimEnd().split("\n");
  rows.forEach((row, place) => {
    row.toggleAttribute("data-on", place === places[view.step]);
    row.replaceChildren(...codeParts(written[place]));
  });
  for (const tensor of view.scene.tensors) {
    if (!isSecret(view, tensor)) continue;
    const row = rows[places[tensor.key]];
    row.replaceChildren(...codeParts(written[places[tensor.key]].replace(/# \(.*\)$/u, "# ?")));
  }
  const row = rows[places[view.step]];
  const middle = row.offsetTop - lines.clientHeight / 2 + row.offsetHeight / 2;
  lines.scrollTop = clamp(middle, 0, lines.scrollHeight);
  memory.textContent = view.guess ? "" : [here(view).memory, view.scene.code_note].filter(Boolean).join(" ");
}

async function copyCode(view) {
  const { copy } = view.dom;
  const { text } = view.scene.code[view.flavour];
  try {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
  } catch {
    // Without https browsers refuse the clipboard: select the program, so that one key copies it.
    window.getSelection()?.selectAllChildren(view.dom.lines);
    copy.textContent = "Press Ctrl+C";
  }
  view.dom.spoken.textContent = copy.textContent;
  setTimeout(() => { copy.textContent = "Copy"; }, 2000);
}
