// The ladder board: the URL's l.* parameters, mirrored in sessionStorage.

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
