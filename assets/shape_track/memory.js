// The shape track: the URL's s.* parameters, mirrored in sessionStorage.

function pickOf([key, index]) {
  return { key, index: [...index] };
}

/** Takes over kept parameters; true when there were any. What this run has not is ignored. */
function recall(view, kept) {
  if (view.scene.letters.includes(kept.get("letter"))) view.letter = kept.get("letter");
  if (kept.get("code") in FLAVOURS) view.flavour = kept.get("code");
  if (kept.has("step")) view.step = kept.get("step");
  const [key, places = ""] = (kept.get("pick") ?? "").split(":");
  if (view.scene.byKey.get(key)?.at !== undefined && /^\d+(,\d+)*$/u.test(places)) {
    view.pick = { key, index: places.split(",").map(Number) };
  }
  return kept.size > 0;
}

/** Shows exactly what the address says, and the run's own start where it says nothing. */
function follow(view) {
  const { step, letter, pick } = view.scene.start;
  Object.assign(view, { step, letter, pick: pickOf(pick), flavour: "numpy" });
  recall(view, parametersOf(window.location.search));
  redraw(view);
}

/** Writes what the person chose. */
function remember(view) {
  if (!canRemember()) return;
  const { start } = view.scene;
  const text = ([key, index]) => `${key}:${index.join(",")}`;
  const chosen = {
    step: [view.step, start.step],
    letter: [view.letter, start.letter],
    pick: [text([view.pick.key, view.pick.index]), text(start.pick)],
    code: [view.flavour, "numpy"],
  };
  keepParameters(chosen);
}
