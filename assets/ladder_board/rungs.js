// The ladder board: the message becomes a scene, and what it says in words.

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
