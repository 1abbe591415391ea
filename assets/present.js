// Present mode: one figure at a time, large, with a halo at the pointer, for a projector and a clicker.
//
// One Streamlit Components-v2 component without state upwards. The page stays as it is; marks on its nodes and
// present.css show one figure of it. Whether the mode is on is a toggle of the page (?present=true); this script presses
// it. PageDown and PageUp go through the figures, then to the next page of the lesson; arrow keys belong to the figure.
//
// Keyboard, ignored while typing: p = on and off, q = the link as a QR code.

const MEMORY = "__headscope_present";
const PLACES = "headscope.present.places";
const FIGURES = '[data-testid="stPlotlyChart"], [data-testid="stBidiComponentIsolated"], table';
// Figures whose parts are slides of their own: where to look, and what to show.
const PARTS = { ".hs": ["head", "heads"], ".hst": ["track", "desk"] };
const MAIN = '[data-testid="stMain"]';
const LARGER = 1.5;
// A slide is laid out as if the screen had so many lines, whatever its size; charts write small, and get fewer.
const LINES = 480;
const CHART_LINES = 400;
const LARGEST = 2.6; // a small table need not fill the wall
const INSIDE = `
.hs[data-hs-part] :is(.hs-hints, .hs-pill, .hs-notices, .hs-lock, .hs-f) { display: none !important; }
.hs[data-hs-part] .hs-desk { display: block !important; height: calc(var(--hs-slide-high) - 62px) !important; }
.hs[data-hs-part] .hs-panel { height: 100% !important; max-height: none !important; }
.hs[data-hs-part="head"] :is(.hs-cards, .hs-e) { display: none !important; }
.hs[data-hs-part="heads"] :is(.hs-cards, .hs-c) { display: none !important; }
.hst[data-hs-part="track"] .hst-desk { display: none !important; }
.hst[data-hs-part="track"] .hst-card { height: calc(var(--hs-slide-high) - 140px) !important; }
.hst[data-hs-part="desk"] .hst-track { display: none !important; }
`;
const SAYS = {
  frame: "Present mode",
  before: "Previous slide",
  after: "Next slide",
  qr: "QR code",
  leave: "Leave",
  empty: "No figure on this page yet.",
  refused: "The QR code could not be drawn. Read the link aloud instead.",
};

/**
 * Draws the frame in component.parentElement; returns the clean-up.
 * @param {{data: {on: boolean, base: string, pages: object[], carried: string[]}, parentElement: Element}} component
 */
export default function present(component) {
  const host = component.parentElement;
  const view = host[MEMORY] ?? (host[MEMORY] = createView(host));
  Object.assign(view, component.data);
  show(view);
  return () => {
    view.on = false;
    show(view);
    view.stops.forEach((stop) => stop());
    view.dom.root.remove();
    delete host[MEMORY];
  };
}

function createView(host) {
  const view = { host, on: false, base: "", pages: [], carried: [], at: 0, slides: [], frame: 0, stops: [], sheets: [] };
  view.dom = build(view);
  host.appendChild(view.dom.root);
  const on = (target, type, handler, settings) => {
    target.addEventListener(type, handler, settings);
    view.stops.push(() => target.removeEventListener(type, handler, settings));
  };
  on(window, "keydown", (event) => onKey(view, event), true);
  on(window, "pointermove", (event) => moveHalo(view, event), { passive: true, capture: true });
  on(document.documentElement, "pointerleave", () => view.dom.halo.toggleAttribute("data-on", false));
  on(window, "resize", () => settleSoon(view));
  on(window, "headscope:present", () => toggle(view));
  on(window, "headscope:room", () => settleSoon(view));
  view.watcher = new MutationObserver(() => settleSoon(view));
  view.stops.push(() => view.watcher.disconnect());
  return view;
}

function build(view) {
  const dom = {};
  dom.where = el("b");
  dom.message = el("span", { className: "hs-message", role: "status" });
  dom.count = el("span", { className: "hs-count" });
  dom.code = el("span", { className: "hs-room" });
  dom.bar = el("div", { className: "hs-frame", role: "group" }, [
    dom.where,
    dom.message,
    dom.code,
    button("‹", SAYS.before, () => turn(view, -1)),
    dom.count,
    button("›", SAYS.after, () => turn(view, 1)),
    button("QR", SAYS.qr, () => toggleCode(view), "q"),
    button("×", SAYS.leave, () => toggle(view), "p"),
  ]);
  dom.bar.setAttribute("aria-label", SAYS.frame);
  dom.picture = el("img", { alt: "" });
  dom.link = el("p");
  dom.board = el("div", { className: "hs-board", hidden: true }, [dom.picture, dom.link]);
  dom.board.addEventListener("click", () => toggleCode(view));
  dom.halo = el("div", { className: "hs-halo" });
  dom.halo.setAttribute("aria-hidden", "true");
  const cover = el("div", { className: "hs-cover" });
  dom.root = el("div", { className: "hs-present" }, [cover, dom.bar, dom.board, dom.halo]);
  return dom;
}

function el(tag, properties = {}, children = []) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

function button(text, name, press, key = "") {
  const node = el("button", { type: "button", textContent: text, title: key ? `${name} (${key})` : name });
  node.setAttribute("aria-label", name);
  node.addEventListener("click", press);
  return node;
}

// ---------------------------------------------------------------------------------------------------------------
// On and off

function toggle(view) {
  const pressed = document.querySelector(".st-key-present input");
  view.on = !view.on;
  show(view); // at once; the page's own answer follows
  pressed?.click();
}

function show(view) {
  document.body.toggleAttribute("data-hs-present", view.on);
  if (!view.on) {
    view.watcher.disconnect();
    view.dom.board.hidden = true;
    unmark(view);
    return;
  }
  const main = document.querySelector(MAIN);
  if (main) view.watcher.observe(main, { childList: true, subtree: true });
  settleSoon(view);
}

function onKey(view, event) {
  const target = event.composedPath()[0];
  const inText = target instanceof Element && (target.matches("textarea, select") || target.isContentEditable);
  const typing = inText || (target instanceof Element && target.matches("input"));
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "p" && !typing) return answer(event, () => toggle(view));
  if (!view.on) return;
  if (event.key === "q" && !typing) return answer(event, () => toggleCode(view));
  if (event.key === "Escape" && !view.dom.board.hidden) return answer(event, () => toggleCode(view));
  const steps = { PageDown: 1, PageUp: -1 };
  if (event.key in steps && !inText) answer(event, () => turn(view, steps[event.key]));
}

function answer(event, act) {
  event.preventDefault();
  event.stopImmediatePropagation();
  if (!event.repeat) act();
}

// ---------------------------------------------------------------------------------------------------------------
// Slides

/** The figures of the page in reading order; a figure with parts is several slides. */
function findSlides() {
  const slides = [];
  for (const node of document.querySelectorAll(`${MAIN} :is(${FIGURES})`)) {
    const holder = node.closest('[data-testid="stElementContainer"]');
    if (!holder || holder.closest('[hidden], [data-stale="true"]') || !isFigure(node)) continue;
    if (slides.some((slide) => slide.holder === holder)) continue;
    const [inner, parts] = partsOf(node);
    for (const part of parts) slides.push({ holder, node, inner, part });
  }
  return slides;
}

function isFigure(node) {
  if (!node.checkVisibility()) return false; // in a closed tab or a folded part
  return node.shadowRoot ? node.shadowRoot.querySelector("canvas, table") !== null : true;
}

function partsOf(node) {
  for (const [name, parts] of Object.entries(PARTS)) {
    const inner = node.shadowRoot?.querySelector(name);
    if (inner) return [inner, parts];
  }
  return [null, [""]];
}

function settleSoon(view) {
  cancelAnimationFrame(view.frame);
  view.frame = requestAnimationFrame(() => settle(view));
}

/** Marks the slide now shown; called again whenever the page has changed. */
function settle(view) {
  if (!view.on) return;
  const path = pathOf(view);
  if (path !== view.path) {
    view.path = path;
    view.at = places()[path]?.at ?? 0;
  }
  view.slides = findSlides();
  const count = view.slides.length;
  const slide = view.slides[Math.min(view.at, count - 1)]; // figures may still be on their way: `at` stays
  const same = slide && view.now && slide.holder === view.now.holder && slide.part === view.now.part;
  if (!same) unmark(view);
  view.now = slide ?? null;
  if (slide) mark(view, slide, !same);
  tell(view, slide);
}

function mark(view, slide, isNew) {
  const { holder, inner, part } = slide;
  holder.toggleAttribute("data-hs-now", true);
  if (inner) {
    dressInside(view, slide.node.shadowRoot);
    inner.dataset.hsPart = part;
  }
  fit(view, slide);
  if (isNew) focusIn(slide);
}

function unmark(view) {
  for (const node of document.querySelectorAll("[data-hs-now]")) node.removeAttribute("data-hs-now");
  if (view.now?.inner) delete view.now.inner.dataset.hsPart;
  view.now = null;
}

/** The style of a figure's inside lies in its shadow: lend it ours. */
function dressInside(view, root) {
  if (root.adoptedStyleSheets.includes(view.sheet)) return;
  view.sheet ??= sheetOf(INSIDE);
  root.adoptedStyleSheets = [...root.adoptedStyleSheets, view.sheet];
}

function sheetOf(text) {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(text);
  return sheet;
}

/** Type at least 1.5 times as large, and more on a large screen; the figure fills what the frame leaves. */
function fit(view, { holder, node, inner }) {
  const style = document.body.style;
  const small = window.innerWidth < 900;
  const wide = window.innerWidth - 32;
  const high = window.innerHeight - view.dom.bar.offsetHeight - 24;
  const isChart = node.matches('[role="figure"]');
  let scale = small ? 1 : Math.max(LARGER, window.innerHeight / (isChart ? CHART_LINES : LINES));
  const put = () => {
    style.setProperty("--hs-slide-scale", scale.toFixed(4));
    style.setProperty("--hs-slide-wide", `${wide / scale}px`);
    style.setProperty("--hs-slide-high", `${high / scale}px`);
  };
  put();
  if (isChart || inner || small || !holder.scrollHeight) return;
  scale = Math.min(LARGEST, Math.max(scale, high / holder.scrollHeight));
  put();
}

function focusIn({ node }) {
  const within = node.shadowRoot ?? node;
  within.querySelector('[tabindex="0"]')?.focus({ preventScroll: true });
}

function tell(view, slide) {
  const { where, message, count, code } = view.dom;
  const page = view.pages.find((one) => one.path === view.path);
  where.textContent = page?.title ?? "";
  message.textContent = slide ? messageOf(slide) : SAYS.empty;
  count.textContent = slide ? `${view.slides.indexOf(slide) + 1} of ${view.slides.length}` : "";
  const room = document.documentElement.dataset.hsRoom ?? "";
  code.textContent = room ? `Room ${room}` : "";
}

/** What a chart says in words; the other figures carry their own headline. */
function messageOf({ node }) {
  return node.matches('[role="figure"]') ? (node.getAttribute("aria-label") ?? "") : "";
}

function turn(view, step) {
  const at = Math.min(view.at, Math.max(0, view.slides.length - 1)) + step;
  if (at >= 0 && at < view.slides.length) {
    view.at = at;
    settle(view);
    return;
  }
  const here = view.pages.findIndex((page) => page.path === view.path);
  const next = view.pages[here + step];
  if (here >= 0 && next) goToPage(view, next.path, step > 0 ? 0 : undefined);
}

// ---------------------------------------------------------------------------------------------------------------
// From page to page

function pathOf(view) {
  return window.location.pathname.slice(view.base.length).replace(/^\/+|\/+$/g, "");
}

function places() {
  try {
    return JSON.parse(window.sessionStorage.getItem(PLACES)) ?? {};
  } catch {
    return {}; // storage may be forbidden: each page then starts afresh
  }
}

/** Leaves a page so that coming back shows the same slide and settings; sentence and model travel along. */
function goToPage(view, path, at) {
  const kept = places();
  const here = new URLSearchParams(window.location.search);
  here.delete("present");
  kept[view.path] = { at: view.at, query: here.toString() };
  if (document.querySelector(`${MAIN} .st-key-bar`)) {
    kept.carried = view.carried.filter((name) => here.has(name)).map((name) => [name, here.get(name)]);
  }
  if (at !== undefined) kept[path] = { ...kept[path], at };
  try {
    window.sessionStorage.setItem(PLACES, JSON.stringify(kept));
  } catch {
    kept.carried ??= []; // as above
  }
  const query = new URLSearchParams(kept[path]?.query ?? "");
  if (kept.carried) {
    view.carried.forEach((name) => query.delete(name));
    kept.carried.forEach(([name, value]) => query.set(name, value));
  }
  query.set("present", "true");
  window.history.pushState(null, "", `${view.base}/${path}?${query}`);
  window.dispatchEvent(new PopStateEvent("popstate", { state: null }));
  settleSoon(view);
}

// ---------------------------------------------------------------------------------------------------------------
// The halo and the code

function moveHalo(view, event) {
  if (!view.on) return;
  const { halo } = view.dom;
  halo.toggleAttribute("data-on", true);
  halo.style.transform = `translate(${event.clientX}px, ${event.clientY}px)`;
}

async function toggleCode(view) {
  const { board, picture, link } = view.dom;
  board.hidden = !board.hidden;
  if (board.hidden) return;
  const room = document.documentElement.dataset.hsRoom;
  const address = room ? `${window.location.origin}${view.base}/?room=${room}` : linkOfPage();
  picture.hidden = true;
  link.textContent = address;
  try {
    const reply = await fetch(`${view.base}/room/qr`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ link: address }),
    });
    if (!reply.ok) throw new Error((await reply.json()).sentence);
    picture.src = `data:image/svg+xml,${encodeURIComponent(await reply.text())}`;
    picture.alt = `QR code of ${address}`;
    picture.hidden = false;
  } catch (problem) {
    link.textContent = problem instanceof TypeError ? SAYS.refused : problem.message;
  }
}

/** The students' link: this page as it is, but not presented. */
function linkOfPage() {
  const search = new URLSearchParams(window.location.search);
  search.delete("present");
  const asked = search.size ? `?${search}` : "";
  return `${window.location.origin}${window.location.pathname}${asked}`;
}
