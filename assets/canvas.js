// Behind elements.js, in front of a component that draws one binary message: the message, the memory of what a person
// chose, colours and canvases.
//
// The component declares NAME; MAGIC, the letters its message starts with; OWN, the start of its parameters in the
// address; STORE, their name in sessionStorage; and the functions decode, adopt, recall and follow.

/** Draws a message. The one drawn already comes again when the theme may have changed: then only `refresh` runs. */
function receive(view, data, refresh) {
  const message = data instanceof Uint8Array ? data : data instanceof ArrayBuffer ? new Uint8Array(data) : null;
  if (!message) {
    showProblem(view, "There is nothing to show yet.");
    return;
  }
  if (view.message && sameBytes(view.message, message)) {
    refresh(view);
    return;
  }
  try {
    adopt(view, decode(message));
    view.message = message;
  } catch (error) {
    showProblem(view, "This picture could not be read. Reload the page.");
    console.error(`${NAME}:`, error);
  }
}

function showProblem(view, sentence) {
  view.message = null;
  view.dom.problem.textContent = sentence;
  view.dom.problem.hidden = false;
  view.dom.body.hidden = true;
}

/** Follows the window: size (of these nodes), theme, and the address, which a step back or a teacher changes. */
function watchWindow(view, nodes, { resized, themed = resized, recalled }) {
  const watcher = new ResizeObserver(() => resized(view));
  nodes.forEach((node) => watcher.observe(node));
  view.stops.push(() => watcher.disconnect());
  listenTo(view, window, "popstate", () => {
    if (view.scene && recall(view, parametersOf(window.location.search))) recalled(view);
  });
  listenTo(view, window, "headscope:view", () => {
    if (view.scene) follow(view);
  });
  listenTo(view, window.matchMedia("(prefers-color-scheme: dark)"), "change", () => themed(view));
}

// ---------------------------------------------------------------------------------------------------------------
// Messages

function sameBytes(one, other) {
  if (one === other) return true;
  if (one.length !== other.length) return false;
  for (let index = 0; index < one.length; index += 1) if (one[index] !== other[index]) return false;
  return true;
}

/** A message's header, and where its body starts: at a multiple of `aligned` bytes. */
function openMessage(bytes, aligned) {
  if (String.fromCharCode(...bytes.subarray(0, 4)) !== MAGIC) throw new Error(`not a ${MAGIC} message`);
  const end = 8 + new DataView(bytes.buffer, bytes.byteOffset).getUint32(4, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, end)));
  return [header, Math.ceil(end / aligned) * aligned];
}

// ---------------------------------------------------------------------------------------------------------------
// Memory: the component's own parameters in the address, mirrored in sessionStorage

function canRemember() {
  return window.location.protocol === "http:" || window.location.protocol === "https:";
}

function readStore(store, name) {
  try {
    return window[store].getItem(name);
  } catch {
    return null; // storage may be forbidden; the component then simply forgets
  }
}

function writeStore(store, name, value) {
  try {
    window[store].setItem(name, value);
  } catch (refused) {
    console.debug(`${NAME}: nothing is kept between pages`, refused);
  }
}

function parametersOf(search) {
  const own = new Map();
  for (const [name, value] of new URLSearchParams(search)) if (name.startsWith(OWN)) own.set(name.slice(OWN.length), value);
  return own;
}

function storedParameters() {
  return parametersOf(readStore("sessionStorage", STORE) ?? "");
}

/** Writes each name's [value, usual value] where they differ; all other parameters of the URL stay as they are. */
function keepParameters(chosen, of) {
  const search = new URLSearchParams(window.location.search);
  const own = new URLSearchParams(of === undefined ? {} : { [`${OWN}of`]: of });
  for (const [name, [value, usual]] of Object.entries(chosen)) {
    if (value === usual) {
      search.delete(OWN + name);
      continue;
    }
    search.set(OWN + name, value);
    own.set(OWN + name, value);
  }
  const asked = search.size ? `?${search}` : "";
  const address = `${window.location.pathname}${asked}${window.location.hash}`;
  window.history.replaceState(window.history.state, "", address);
  writeStore("sessionStorage", STORE, own.toString());
}

// ---------------------------------------------------------------------------------------------------------------
// Words and numbers

function clamp(value, low, high) {
  return Math.min(high, Math.max(low, value));
}

function percent(share) {
  return share > 0 && share < 0.005 ? "< 1 %" : `${Math.round(share * 100)} %`;
}

function listed(parts) {
  return parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`;
}

// ---------------------------------------------------------------------------------------------------------------
// Colours

function isDark(view) {
  const ground = getComputedStyle(view.dom.root).getPropertyValue("--st-background-color").trim();
  if (!ground) return window.matchMedia("(prefers-color-scheme: dark)").matches;
  const [red, green, blue] = parseColour(ground);
  return 0.299 * red + 0.587 * green + 0.114 * blue < 128;
}

function parseColour(text) {
  if (text.startsWith("#")) {
    const digits = text.slice(1);
    const wide = digits.length < 6 ? [...digits].map((digit) => digit + digit).join("") : digits;
    return [0, 2, 4].map((at) => parseInt(wide.slice(at, at + 2), 16));
  }
  return (text.match(/[\d.]+/gu) ?? [255, 255, 255]).slice(0, 3).map(Number);
}

/** Reads the style's colours by name, one or many at once, and its font. */
function readStyle(view) {
  const style = getComputedStyle(view.dom.root);
  const read = (name) => style.getPropertyValue(`--hs-${name}`).trim();
  const readAll = (names) => Object.fromEntries(names.map((name) => [name, read(name)]));
  return { read, readAll, font: style.fontFamily };
}

/** 256 colours, [red, green, blue], through the five stops a letter names in the style. */
function scaleOf(read, letter) {
  const stops = [0, 1, 2, 3, 4].map((stop) => parseColour(read(`${letter}${stop}`)));
  return Array.from({ length: 256 }, (_, step) => {
    const at = (step / 255) * 4;
    const low = Math.min(3, Math.floor(at));
    return stops[low].map((from, part) => Math.round(from + (stops[low + 1][part] - from) * (at - low)));
  });
}

function asCss(colour) {
  return `rgb(${colour.join(" ")})`;
}

// ---------------------------------------------------------------------------------------------------------------
// Canvases

/** How much larger a node is on the screen than it is laid out: more than 1 where the page is presented. */
function enlargement(node) {
  return node.getBoundingClientRect().width / node.offsetWidth || 1;
}

/** Where the pointer is inside a node, in the node's own pixels. */
function pointIn(node, event) {
  const box = node.getBoundingClientRect();
  const larger = enlargement(node);
  return [(event.clientX - box.left) / larger, (event.clientY - box.top) / larger];
}

/** Sizes a canvas for the screen's pixels and hands out a cleared context in CSS pixels. */
function contextOf(canvas, width, height, larger = 1) {
  const ratio = (window.devicePixelRatio || 1) * larger;
  const wide = Math.round(width * ratio);
  const high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
  const context = canvas.getContext("2d");
  context.reset();
  context.scale(ratio, ratio);
  return context;
}

/** The same, where the style does not size the canvas. */
function sizedContext(canvas, width, height, larger) {
  const context = contextOf(canvas, width, height, larger);
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  return context;
}

function fitted(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  const letters = [...text];
  while (letters.length > 1 && context.measureText(`${letters.join("")}…`).width > room) letters.pop();
  return `${letters.join("")}…`;
}
