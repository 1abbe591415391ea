// The ladder board: colours, and everything painted around the pictures.

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
