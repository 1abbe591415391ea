// Present mode: one figure at a time, large, with a halo at the pointer, for a projector and a clicker.
//
// One Streamlit Components-v2 component. Upwards goes only the trigger "theme", when light turns dark or back. The page stays as it is; marks on its nodes and
// present.css show one figure of it. Whether the mode is on is a toggle of the page (?present=true); this script presses
// it. PageDown and PageUp go through the figures, then through the page's own steps (the parts of the lesson, the
// questions of a paper), then to the next page; arrow keys belong to the figure.
//
// Keyboard, ignored while typing: p = on and off, q = the link as a QR code.

const MEMORY = "__headscope_present";
const PLACES = "headscope.present.places";
const MAIN = '[data-testid="stMain"]';
// What is a slide: charts, components that draw, tables, and what pages write as plain HTML to be looked at.
const FIGURES = [
  '[data-testid="stPlotlyChart"]', '[data-testid="stBidiComponentIsolated"]',
  `${MAIN}:not(:has(.hs-7)) table`, // the seven steps are drawn already
  ".hs-7", ".hs-groups", ".hs-w-text", ".hs-n-breath", '[class*="st-key-n_slide"]', ".hs-q-text", ".hs-q-plan > li",
].join();
// Figures whose parts are slides of their own: where to look, and what to show.
const PARTS = {
  ".hs": ["head", "heads"],
  ".hst": ["track", "follow", "code"],
  ".hsl": ["chart", "groups", "fates", "maps"],
};
const OWN_HEADLINE = [".hs", ".hst"];
// Pages with steps of their own: what goes on and back, how one sees that it has, and the address of the ends.
const STEPS = {
  lesson: {
    on: ".st-key-n_next button:not([disabled])",
    back: ".st-key-n_back button:not([disabled])",
    place: ".hs-n-title",
    first: ["n_part", "1"],
    last: ["n_part", "9"],
  },
  quiz: {
    on: `.st-key-q_start button, ${MAIN}:not(:has(.hs-q-dots li:last-child[aria-current])) .st-key-q_next button`,
    back: ".st-key-q_back button:not([disabled])",
    place: ".hs-q-text",
  },
};
const STEP_MS = 5000; // so long a step may take before the keys are free again
const LAST = 99;
const SHEET = 1000; // pixels across a sheet, its margins left out
const LARGER = 1.5;
// A slide is laid out as if the screen had so many lines, whatever its size; charts write small, and get fewer.
const LINES = 480;
const CHART_LINES = 400;
const CHART_HIGH = 340; // of a chart alone, under its headline
const LARGEST = 2.6; // a small table need not fill the wall
const LEAST = 1.2; // a long question is read whole, or scrolled
const INSIDE = `
.hs[data-hs-part] :is(.hs-hints, .hs-pill, .hs-notices, .hs-lock, .hs-f) { display: none !important; }
.hs[data-hs-part] .hs-desk { display: block !important; height: calc(var(--hs-slide-high) - 62px) !important; }
.hs[data-hs-part] .hs-panel { height: 100% !important; max-height: none !important; }
.hs[data-hs-part="head"] :is(.hs-cards, .hs-e) { display: none !important; }
.hs[data-hs-part="heads"] :is(.hs-cards, .hs-c) { display: none !important; }
.hst[data-hs-part="track"] .hst-desk { display: none !important; }
.hst[data-hs-part="track"] .hst-card { height: calc(var(--hs-slide-high) - 140px) !important; }
.hst:is([data-hs-part="follow"], [data-hs-part="code"]) .hst-track { display: none !important; }
.hst:is([data-hs-part="follow"], [data-hs-part="code"]) .hst-desk { grid-template-columns: minmax(0, 1fr) !important; }
.hst[data-hs-part="follow"] .hst-code { display: none !important; }
.hst[data-hs-part="code"] .hst-follow { display: none !important; }
.hst[data-hs-part="code"] .hst-code { height: calc(var(--hs-slide-high) - 140px) !important; }
.hsl[data-hs-part] .hsl-controls { position: static !important; }
.hsl[data-hs-part] :is(.hsl-state, .hsl-note) { display: none !important; }
.hsl[data-hs-part] .hsl-top { grid-template-columns: minmax(0, 1fr) !important; }
.hsl[data-hs-part] .hsl-groups { grid-template: auto / repeat(3, minmax(0, 1fr)) !important; }
.hsl[data-hs-part="maps"] .hsl-maps figure:is(:nth-child(3), :nth-child(5)) { display: none !important; }
.hsl[data-hs-part]:not([data-hs-part="chart"]) .hsl-chart { display: none !important; }
.hsl[data-hs-part]:not([data-hs-part="groups"]) .hsl-groups { display: none !important; }
.hsl:is([data-hs-part="chart"], [data-hs-part="groups"]) :is(.hsl-body > .hsl-head, .hsl-fates, .hsl-maps, .hsl-cell),
.hsl[data-hs-part="fates"] :is(.hsl-top, .hsl-maps-head, .hsl-maps, .hsl-cell),
.hsl[data-hs-part="maps"] :is(.hsl-top, .hsl-fates, .hsl-body > .hsl-head:not(.hsl-maps-head)) { display: none !important; }
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
 * @param {{data: {on: boolean, theme: string, base: string, pages: object[], carried: string[]},
 *   parentElement: Element, setTriggerValue: Function}} component
 */
export default function present(component) {
  const host = component.parentElement;
  const view = host[MEMORY] ?? (host[MEMORY] = createView(host));
  Object.assign(view, component.data, { ask: component.setTriggerValue });
  document.body.dataset.hsTheme = view.theme; // of the run whose colours the page shows
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
  const view = { host, on: false, base: "", pages: [], carried: [], at: 0, slides: [], frame: 0, stops: [], moving: null };
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
  on(window, "beforeprint", () => document.body.style.setProperty("--hs-print-zoom", SHEET / window.innerWidth));
  // Charts and coloured words come from the server in the theme of their run: a new theme asks for a new run.
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  on(dark, "change", () => view.ask("theme", dark.matches ? "dark" : "light"));
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
  dom.title = el("p", { className: "hs-title" });
  dom.words = el("p", { className: "hs-saying" });
  dom.headline = el("div", { className: "hs-headline" }, [dom.title, dom.words]);
  dom.root = el("div", { className: "hs-present" }, [cover, dom.headline, dom.bar, dom.board, dom.halo]);
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

/** The figures of the page in reading order; a figure with parts is several slides, a question is one. */
function findSlides() {
  const slides = [];
  for (const node of document.querySelectorAll(`${MAIN} :is(${FIGURES})`)) {
    const holder = holderOf(node);
    if (!holder || holder.closest('[hidden], [data-stale="true"]') || !isFigure(node)) continue;
    if (slides.some((slide) => slide.holder.contains(holder))) continue;
    const [inner, own, parts] = partsOf(node);
    for (const part of parts) slides.push({ holder, node, inner, own, part });
  }
  return slides;
}

/** The node that is enlarged: of a question all that belongs to it, of anything else the element of the page. */
function holderOf(node) {
  if (node.matches('li, [class*="st-key-n_slide"]')) return node;
  if (!node.matches(".hs-q-text")) return node.closest('[data-testid="stElementContainer"]');
  const block = node.closest('[data-testid="stVerticalBlock"]');
  return block?.querySelector(".hs-q-plan") ? null : block;
}

function isFigure(node) {
  if (!node.checkVisibility()) return false; // in a closed tab or a folded part
  return node.shadowRoot ? node.shadowRoot.querySelector("canvas, table, .hg") !== null : true;
}

function partsOf(node) {
  for (const [name, parts] of Object.entries(PARTS)) {
    const inner = node.shadowRoot?.querySelector(name);
    if (inner) return [inner, OWN_HEADLINE.includes(name), parts];
  }
  return [null, false, [""]];
}

/** The heading of the page that the slide stands under; none where the slide has its own. */
function headlineOf({ holder, own }) {
  if (own || holder.querySelector("h2") || holder.matches("li")) return "";
  const before = (heading) => heading.compareDocumentPosition(holder) & Node.DOCUMENT_POSITION_FOLLOWING;
  const headings = document.querySelectorAll(`${MAIN} h2`);
  return [...headings].filter((one) => one.checkVisibility() && before(one)).at(-1)?.textContent ?? "";
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
    view.moving = null;
  }
  if (isMoving(view)) return;
  view.slides = findSlides();
  const count = view.slides.length;
  const slide = view.slides[Math.min(view.at, count - 1)]; // figures may still be on their way: `at` stays
  const same = slide && view.now && slide.holder === view.now.holder && slide.part === view.now.part;
  if (!same) unmark(view);
  view.now = slide ?? null;
  tell(view, slide);
  if (slide) mark(view, slide, !same);
}

/** Whether a step of the page is on its way; until it has come, the slide before stays. */
function isMoving(view) {
  if (!view.moving) return false;
  const { from, at, until } = view.moving;
  if (placeOf(view) === from && performance.now() < until) return true;
  if (placeOf(view) !== from) view.at = at;
  view.moving = null;
  return false;
}

function placeOf(view) {
  const node = document.querySelector(STEPS[view.path]?.place ?? "body");
  return `${node?.dataset.at} ${node?.textContent}`;
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
  const top = 12 + view.dom.headline.offsetHeight;
  const high = window.innerHeight - view.dom.bar.offsetHeight - top - 12;
  const isChart = node.matches('[role="figure"]');
  style.setProperty("--hs-slide-top", `${top}px`);
  const put = (scale) => {
    style.setProperty("--hs-slide-scale", scale.toFixed(4));
    style.setProperty("--hs-slide-wide", `${wide / scale}px`);
    style.setProperty("--hs-slide-high", `${high / scale}px`);
  };
  const roomy = isChart ? Math.min(window.innerHeight / CHART_LINES, high / CHART_HIGH) : window.innerHeight / LINES;
  const usual = small ? 1 : Math.max(LARGER, roomy);
  put(usual);
  if (!isChart && !inner && !small) put(largest(holder, put));
}

/** The largest type with which all of it fits; what does not fit at the smallest is scrolled. */
function largest(holder, put) {
  for (let scale = LARGEST; scale > LEAST; scale -= 0.1) {
    put(scale);
    if (holder.scrollHeight <= holder.clientHeight + 1 && holder.scrollWidth <= holder.clientWidth + 1) return scale;
  }
  return LEAST;
}

function focusIn({ node }) {
  const within = node.shadowRoot ?? node;
  within.querySelector('[tabindex="0"]')?.focus({ preventScroll: true });
}

function tell(view, slide) {
  const { where, message, count, code, title, words } = view.dom;
  const page = view.pages.find((one) => one.path === view.path);
  where.textContent = page?.title ?? "";
  title.textContent = slide ? headlineOf(slide) : "";
  words.textContent = (slide && document.querySelector(`${MAIN} .hs-n-words p`)?.textContent) ?? "";
  if (slide?.holder.textContent.includes(words.textContent)) words.textContent = "";
  message.textContent = slide ? messageOf(slide) : SAYS.empty;
  count.textContent = slide ? `${view.slides.indexOf(slide) + 1} of ${view.slides.length}` : "";
  const room = document.documentElement.dataset.hsRoom ?? "";
  code.textContent = room ? `Room ${room}` : "";
}

/** What a chart says in words, cut to what the frame holds; the other figures carry their own headline. */
function messageOf({ node }) {
  return node.matches('[role="figure"]') ? (node.getAttribute("aria-label") ?? "") : "";
}

function turn(view, step) {
  if (view.moving && performance.now() < view.moving.until) return; // the press before is still being answered
  const at = Math.min(view.at, Math.max(0, view.slides.length - 1)) + step;
  if (at >= 0 && at < view.slides.length) {
    view.at = at;
    settle(view);
    return;
  }
  const steps = STEPS[view.path];
  const press = steps && document.querySelector(step > 0 ? steps.on : steps.back);
  if (press) {
    view.moving = { from: placeOf(view), at: step > 0 ? 0 : LAST, until: performance.now() + STEP_MS };
    press.click();
    return;
  }
  const here = view.pages.findIndex((page) => page.path === view.path);
  const next = view.pages[here + step];
  if (here >= 0 && next) goToPage(view, next.path, step);
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
function goToPage(view, path, step) {
  const kept = places();
  const here = new URLSearchParams(window.location.search);
  here.delete("present");
  kept[view.path] = { at: view.at, query: here.toString() };
  if (document.querySelector(`${MAIN} .st-key-bar`)) {
    kept.carried = view.carried.filter((name) => here.has(name)).map((name) => [name, here.get(name)]);
  }
  kept[path] = { ...kept[path], at: step > 0 ? 0 : LAST };
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
  const [name, value] = (step > 0 ? STEPS[path]?.first : STEPS[path]?.last) ?? [];
  if (name) query.set(name, value);
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
