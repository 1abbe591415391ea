// The ladder board: who reads whose keys and values, and the three fates.

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

// ---------------------------------------------------------------------------------------------------------------
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
