// The class menu in the page's corner: present, open a room, join one, and follow whoever leads it.
//
// One Streamlit Components-v2 component without state upwards: nothing here makes the server run the page, except the
// one popstate event by which a follower goes where the leader is. News of a room come as server-sent events, read with
// fetch, because a code and a token belong in a body and a header, not in an address.
//
// A room knows one thing, the page state: path and query. Parameters of the form "x.name" belong to a figure, which
// applies them in the browser ("headscope:view"); any other difference costs the follower one run of the script.
//
// Keyboard: f goes back to the leader, ignored while typing.

const MEMORY = "__headscope_room";
const LEADS = "headscope.room.leads";
const FOLLOWS = "headscope.room.follows";
const LOOK_EVERY_MS = 100;
const STABLE_MS = 250; // a change of page sets its parameters in several steps: wait for the last one
const SILENCE_MS = 10_000; // five heartbeats
const LONGEST_PAUSE_MS = 15_000;
const MOST_CORRECTIONS = 8;
const OF_FIGURES = /^[a-z]\./;
const SAYS = {
  menu: "Class",
  present: "Present this page",
  openTitle: "Show your page to the class",
  openText: "Everyone who joins your room sees the page you are on.",
  open: "Open a room",
  joinTitle: "Follow a teacher",
  code: "Room code",
  join: "Join",
  close: "Close room",
  leave: "Leave room",
  back: "Back to the teacher",
  away: "You look around by yourself.",
  lost: "The connection to the room is lost. Trying again.",
  offline: "The server does not answer. The page stays as it is.",
  leading: "You lead a room. Close it before you follow another.",
  retake: "Lead here",
  notWhole: "Your sentence is too long for a link. Those who follow see another sentence.",
  onlyHere: "This address works on this computer only. Give your class the address they can reach.",
  dismiss: "Close this message",
};

/**
 * Draws the menu in component.parentElement; returns the clean-up.
 * @param {{data: {base: string}, parentElement: Element}} component
 */
export default function room(component) {
  const host = component.parentElement;
  const view = host[MEMORY] ?? createView(host, component.data.base);
  return () => destroy(view);
}

function createView(host, base) {
  const view = mount(host, {
    base,
    leads: null, // {code, token, followers, sent, whole, held}
    follows: null, // {code, wanted, shown, away, here, corrections, note}
    goal: null, // {wanted, shown, corrections} after a link to a slide was pressed, until the person goes on
    replaced: null, // {code, token} after another window took the lead
    message: "",
    touched: false, // by the person, since the leader's page was last shown
    typed: false,
    stream: null,
    seen: { state: pageState(base), since: 0 },
  });
  resume(view);
  render(view);
  return view;
}

function destroy(view) {
  stopStream(view);
  takeDown(view);
}

function listen(view) {
  const clock = setInterval(() => look(view), LOOK_EVERY_MS);
  view.stops.push(() => clearInterval(clock));
  listenTo(view, window, "pointerdown", (event) => noteTouch(view, event), true);
  listenTo(view, window, "keydown", (event) => onKey(view, event), true);
  listenTo(view, window, "click", (event) => onLink(view, event), true);
  listenTo(view, window, "pointerdown", (event) => {
    if (!event.composedPath().includes(view.dom.root)) showMenu(view, false);
  });
  listenTo(view, view.dom.root, "keydown", (event) => {
    if (event.key !== "Escape" || view.dom.menu.hidden) return;
    showMenu(view, false);
    view.dom.opener.focus();
  });
}

/** After a reload, or in a copy of the window: take the seat again. A link with ?room= joins. */
function resume(view) {
  const kept = readJson(LEADS);
  const invited = new URLSearchParams(window.location.search).get("room");
  if (invited !== null) forgetInvitation();
  if (kept) {
    lead(view, kept);
    if (invited !== null && tidied(invited) !== kept.code) say(view, SAYS.leading);
    return;
  }
  const code = invited === null ? readJson(FOLLOWS)?.code : tidied(invited);
  if (code !== undefined) follow(view, code);
}

function forgetInvitation() {
  const search = new URLSearchParams(window.location.search);
  search.delete("room");
  const asked = search.size ? `?${search}` : "";
  window.history.replaceState(window.history.state, "", window.location.pathname + asked);
}

// ---------------------------------------------------------------------------------------------------------------
// The page's state

/** Path and query as a room knows them: sorted, without what belongs to this window alone. */
function pageState(base) {
  return canonical(window.location.pathname, window.location.search, base);
}

function canonical(pathname, search, base = "") {
  const query = new URLSearchParams(search);
  query.delete("present");
  query.delete("room");
  query.sort();
  const path = pathname.slice(base.length).replace(/\/+$/, "") || "/";
  return query.size ? `${path}?${query}` : path;
}

/** What the server must run for, and what the figures apply by themselves. */
function parted(state) {
  const [path, query = ""] = state.split("?");
  const ofServer = new URLSearchParams();
  const ofFigures = new URLSearchParams();
  for (const [name, value] of new URLSearchParams(query)) {
    (OF_FIGURES.test(name) ? ofFigures : ofServer).append(name, value);
  }
  return { server: `${path}?${ofServer}`, figures: ofFigures.toString() };
}

/** Goes to a page state: without a run where only figures differ, with exactly one otherwise. */
function goTo(view, state, write = "replaceState") {
  const now = parted(pageState(view.base));
  const then = parted(state);
  if (now.server === then.server && now.figures === then.figures) return;
  const [path, query = ""] = state.split("?");
  const search = new URLSearchParams(query);
  if (new URLSearchParams(window.location.search).get("present") === "true") search.set("present", "true");
  const address = `${view.base}${path}${search.size ? `?${search}` : ""}`;
  window.history[write](window.history.state, "", address);
  if (now.server === then.server) window.dispatchEvent(new CustomEvent("headscope:view"));
  else window.dispatchEvent(new PopStateEvent("popstate", { state: window.history.state }));
}

function look(view) {
  const state = pageState(view.base);
  const now = performance.now();
  if (state !== view.seen.state) view.seen = { state, since: now, before: view.seen.state };
  if (view.leads) showToRoom(view, now);
  if (view.follows) compare(view, state);
  if (view.goal) pursue(view, state);
  if (view.stream && now - view.stream.heardAt > SILENCE_MS) view.stream.cut.abort();
}

// ---------------------------------------------------------------------------------------------------------------
// Leading

async function openRoom(view) {
  say(view, "");
  const answer = await ask(view, "open", {});
  if (!answer.ok) {
    say(view, answer.sentence);
    return;
  }
  lead(view, { code: answer.facts.code, token: answer.facts.token });
}

function lead(view, { code, token }) {
  view.replaced = null;
  view.leads = { code, token, followers: 0, sent: null, whole: true, busy: false, notBefore: 0 };
  writeJson(LEADS, { code, token });
  announce(view);
  render(view);
  stream(view, "lead", { code }, token, (kind, facts) => {
    if (kind === "count") view.leads.followers = facts.followers;
    if (kind === "ended") {
      if (facts.why === "replaced") view.replaced = { code, token };
      endLead(view, facts.sentence);
    }
    render(view);
  });
}

/** A figure's state goes out at once, a change of the page when the address has come to rest. */
async function showToRoom(view, now) {
  const leads = view.leads;
  const { state, since } = view.seen;
  const whole = !isTooLong();
  if ((state === leads.sent && whole === leads.whole) || leads.busy || now < leads.notBefore) return;
  const samePage = leads.sent !== null && parted(leads.sent).server === parted(state).server;
  if (!samePage && now - since < STABLE_MS) return;
  leads.busy = true;
  const answer = await ask(view, "show", { code: leads.code, state, whole }, leads.token);
  leads.busy = false;
  if (view.leads !== leads) return;
  if (answer.ok || answer.status === 400 || answer.status === 413) Object.assign(leads, { sent: state, whole });
  else leads.notBefore = performance.now() + 1000;
  if (answer.ok && [SAYS.offline, SAYS.notWhole].includes(view.message)) say(view, "");
  if (answer.ok && !whole) say(view, SAYS.notWhole);
  if (!answer.ok && answer.status !== 429) say(view, answer.sentence);
}

/** Whether the page holds a sentence that its address cannot: its own Share button then rests. */
function isTooLong() {
  const holder = document.querySelector('.st-key-share [data-testid="stBidiComponentIsolated"]');
  return holder?.shadowRoot?.querySelector("#share")?.disabled === true;
}

async function closeRoom(view) {
  const { code, token } = view.leads;
  endLead(view, "");
  const answer = await ask(view, "close", { code }, token);
  if (!answer.ok) say(view, answer.sentence);
}

function endLead(view, sentence) {
  stopStream(view);
  view.leads = null;
  writeJson(LEADS, null);
  announce(view);
  say(view, sentence);
}

/** Tells the frame of present mode which code to show. */
function announce(view) {
  const code = view.leads?.code ?? "";
  document.documentElement.dataset.hsRoom = code;
  window.dispatchEvent(new CustomEvent("headscope:room"));
}

// ---------------------------------------------------------------------------------------------------------------
// Following

function follow(view, code) {
  say(view, "");
  const follows = { code, wanted: null, shown: null, away: false, corrections: 0, joined: false, note: "" };
  view.follows = follows;
  writeJson(FOLLOWS, { code });
  render(view);
  stream(view, "follow", { code }, null, (kind, facts) => {
    follows.joined = true;
    if (kind === "note") follows.note = facts.sentence;
    if (kind === "leader") say(view, facts.here ? "" : facts.sentence);
    if (kind === "state") {
      follows.wanted = facts.state;
      if (view.typed) follows.away = true;
      if (!follows.away) comeAlong(view);
    }
    if (kind === "ended") leave(view, facts.sentence);
    render(view);
  });
}

function comeAlong(view) {
  const { follows } = view;
  if (follows.wanted === null) return;
  Object.assign(view, { touched: false, typed: false });
  Object.assign(follows, { away: false, shown: follows.wanted, corrections: 0 });
  goTo(view, follows.wanted);
}

/** Notices that the person went elsewhere. What the page itself changed in its address is put right instead. */
function compare(view, state) {
  const { follows } = view;
  if (follows.shown === null || follows.away || state === follows.shown) return;
  if (view.touched) {
    follows.away = true;
    render(view);
    return;
  }
  correct(view, follows, state);
}

/** Puts right what figures remember of another visit of theirs and the state wanted does not say. */
function correct(view, chase, state) {
  const { server, figures } = parted(state);
  const wanted = parted(chase.wanted);
  chase.shown = state;
  if (server !== wanted.server || figures === wanted.figures || chase.corrections >= MOST_CORRECTIONS) return;
  chase.corrections += 1;
  chase.shown = chase.wanted;
  goTo(view, chase.wanted);
}

/** A link marked as a slide goes there in this window, with its room, however the page was changed meanwhile. */
function onLink(view, event) {
  const link = event.composedPath().find((node) => node instanceof Element && node.matches("a[data-hs-go]"));
  if (!link || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  const target = new URL(link.href);
  const wanted = canonical(target.pathname, target.search, view.base);
  view.goal = { wanted, shown: wanted, corrections: 0 };
  view.touched = false;
  if (view.follows) view.follows.away = wanted !== view.follows.wanted;
  goTo(view, wanted, "pushState");
  render(view);
}

function pursue(view, state) {
  if (view.touched) view.goal = null;
  else if (state !== view.goal.shown) correct(view, view.goal, state);
}

function leave(view, sentence) {
  stopStream(view);
  view.follows = null;
  writeJson(FOLLOWS, null);
  say(view, sentence);
}

function noteTouch(view, event) {
  if (!event.isTrusted || event.composedPath().includes(view.dom.root)) return;
  view.touched = true;
}

function onKey(view, event) {
  if (!event.isTrusted || event.composedPath().includes(view.dom.root)) return;
  const typing = isTyping(event);
  const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
  if (view.follows && !typing && plain && event.key === "f") {
    event.preventDefault();
    event.stopPropagation();
    comeAlong(view);
    render(view);
    return;
  }
  view.touched = true;
  if (typing && plain && (event.key.length === 1 || event.key === "Backspace")) view.typed = true;
}

function isTyping(event) {
  const target = event.composedPath()[0];
  return target instanceof Element && (target.matches("input, textarea, select") || target.isContentEditable);
}

// ---------------------------------------------------------------------------------------------------------------
// Talking to the server

async function ask(view, name, facts, token = null) {
  try {
    const reply = await post(view, name, facts, token);
    const told = await reply.json();
    return { ok: reply.ok, status: reply.status, facts: told, sentence: told.sentence ?? SAYS.offline };
  } catch {
    return { ok: false, status: 0, facts: {}, sentence: SAYS.offline }; // no network, or no JSON: the page stays
  }
}

function post(view, name, facts, token, signal) {
  const headers = { "content-type": "application/json" };
  if (token) headers["x-room-token"] = token;
  return fetch(`${view.base}/room/${name}`, { method: "POST", headers, body: JSON.stringify(facts), signal });
}

/** Listens until the room ends or the seat is given up; a lost connection is tried again, less and less often. */
async function stream(view, name, facts, token, heard) {
  stopStream(view);
  const own = { ended: false, heardAt: performance.now(), cut: new AbortController(), timer: 0 };
  view.stream = own;
  let pause = 1000;
  while (!own.ended) {
    own.cut = new AbortController();
    own.heardAt = performance.now();
    try {
      const reply = await post(view, name, facts, token, own.cut.signal);
      if (own.ended) break;
      if (!reply.ok) {
        const { sentence } = await reply.json();
        if (reply.status !== 429) {
          heard("ended", { why: "refused", sentence });
          break;
        }
        if (!view.follows?.joined && !view.leads) {
          heard("ended", { why: "refused", sentence });
          break;
        }
        throw new Error(sentence);
      }
      if (view.message === SAYS.lost) say(view, "");
      pause = 1000;
      if (view.leads) view.leads.sent = null;
      await readEvents(own, reply.body, heard);
    } catch (error) {
      if (own.ended) break;
      console.debug("room:", error); // a lost connection is no fault of the page
    }
    if (own.ended) break;
    say(view, SAYS.lost);
    await new Promise((go) => {
      own.timer = setTimeout(go, pause * (0.75 + Math.random() / 2));
      own.go = go;
    });
    pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
  }
}

async function readEvents(own, body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done || own.ended) return;
    own.heardAt = performance.now();
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const fields = new Map(block.split("\n").map((line) => [line.split(": ", 1)[0], line.slice(line.indexOf(": ") + 2)]));
      if (fields.has("event") && !own.ended) heard(fields.get("event"), JSON.parse(fields.get("data")));
    }
  }
}

function stopStream(view) {
  const own = view.stream;
  if (!own) return;
  own.ended = true;
  clearTimeout(own.timer);
  own.go?.();
  own.cut.abort();
  view.stream = null;
}

// ---------------------------------------------------------------------------------------------------------------
// The menu (text always goes in through textContent)

function build(view) {
  const dom = {};
  dom.opener = button(SAYS.menu, "opener", () => showMenu(view, dom.menu.hidden), {
    "aria-expanded": "false",
    "aria-controls": "menu",
  });
  dom.present = button(SAYS.present, "", () => {
    showMenu(view, false);
    window.dispatchEvent(new CustomEvent("headscope:present"));
  });
  dom.present.append(el("kbd", { text: "p" }));
  dom.field = el("input", {
    id: "code",
    maxlength: "8",
    autocomplete: "off",
    autocapitalize: "characters",
    spellcheck: "false",
  });
  dom.join = el("form", { on: { submit: (event) => join(view, event) } }, [
    el("label", { for: "code", text: SAYS.code }),
    el("span", { class: "row" }, [dom.field, el("button", { text: SAYS.join })]),
  ]);
  dom.idle = el("div", {}, [
    el("h2", { text: SAYS.openTitle }),
    el("p", { text: SAYS.openText }),
    button(SAYS.open, "strong", () => openRoom(view)),
    el("h2", { text: SAYS.joinTitle }),
    dom.join,
  ]);
  dom.code = el("p", { class: "code" });
  dom.link = el("p", { class: "link" });
  dom.picture = el("img", { class: "qr", alt: "" });
  dom.hint = el("p", { class: "hint", text: SAYS.onlyHere });
  dom.leading = el("div", {}, [
    dom.code,
    dom.link,
    dom.picture,
    dom.hint,
    button(SAYS.close, "", () => closeRoom(view)),
  ]);
  dom.leave = button(SAYS.leave, "", () => {
    leave(view, "");
    showMenu(view, false);
  });
  dom.notice = el("p", { class: "notice" });
  dom.menu = el("div", { id: "menu", class: "menu", role: "group", "aria-label": SAYS.menu, hidden: true }, [
    dom.present,
    dom.idle,
    dom.leading,
    dom.leave,
    dom.notice,
  ]);
  dom.words = el("span", { role: "status", "aria-live": "polite" });
  dom.back = button(SAYS.back, "", () => {
    comeAlong(view);
    render(view);
  });
  dom.back.append(el("kbd", { text: "f" }));
  dom.retake = button(SAYS.retake, "", () => lead(view, view.replaced));
  dom.dismiss = button("×", "", () => say(view, ""), { "aria-label": SAYS.dismiss });
  dom.pill = el("div", { class: "pill" }, [dom.words, dom.back, dom.retake, dom.dismiss]);
  dom.root = el("div", { class: "room" }, [dom.opener, dom.menu, dom.pill]);
  return dom;
}

function join(view, event) {
  event.preventDefault();
  follow(view, tidied(view.dom.field.value));
}

function tidied(code) {
  return code.toUpperCase().replace(/[^A-Z0-9]/g, "").slice(0, 8);
}

function showMenu(view, open) {
  const { menu, opener } = view.dom;
  menu.hidden = !open;
  opener.setAttribute("aria-expanded", String(open));
  if (open) drawCode(view);
}

function say(view, sentence) {
  view.message = sentence;
  render(view);
}

function render(view) {
  const { dom, leads, follows } = view;
  dom.root.dataset.state = leads ? "leading" : follows ? (follows.away ? "away" : "following") : "idle";
  setText(dom.opener, leads ? `Room ${leads.code} · ${leads.followers}` : follows?.joined ? `Room ${follows.code}` : SAYS.menu);
  dom.idle.hidden = Boolean(leads || follows);
  dom.leading.hidden = !leads;
  dom.leave.hidden = !follows;
  setText(dom.notice, view.message);
  dom.notice.hidden = !view.message;
  if (leads) {
    setText(dom.code, leads.code);
    setText(dom.link, `${leads.followers === 1 ? "1 person follows" : `${leads.followers} people follow`} you. ${joinLink(view)}`);
    dom.hint.hidden = !/^(localhost|127\.|\[::1\])/.test(window.location.hostname);
  }
  if (!dom.menu.hidden) drawCode(view);
  if (follows?.joined) showMenuOnce(view);
  setText(dom.words, words(view));
  dom.back.hidden = !follows?.away || follows.wanted === null;
  dom.retake.hidden = !view.replaced;
  dom.dismiss.hidden = !view.message || !dom.back.hidden;
  dom.pill.hidden = !dom.words.textContent;
}

/** Once joined, the menu has done its work. */
function showMenuOnce(view) {
  if (view.follows.welcomed) return;
  view.follows.welcomed = true;
  showMenu(view, false);
}

function words(view) {
  const { follows, message } = view;
  if (follows?.away) return message ? `${message} ${SAYS.away}` : SAYS.away;
  if (message) return message;
  return follows?.joined ? follows.note || `You follow room ${follows.code}.` : "";
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function joinLink(view) {
  return `${window.location.origin}${view.base}/?room=${view.leads.code}`;
}

async function drawCode(view) {
  const { picture } = view.dom;
  if (!view.leads) return;
  const link = joinLink(view);
  if (picture.dataset.link === link) return;
  picture.dataset.link = link;
  picture.alt = `QR code of ${link}`;
  try {
    const reply = await post(view, "qr", { link }, null);
    if (!reply.ok) throw new Error((await reply.json()).sentence);
    picture.src = `data:image/svg+xml,${encodeURIComponent(await reply.text())}`;
  } catch {
    delete picture.dataset.link; // drawn at the next opening; the link stands beside it in words
  }
}

function readJson(name) {
  try {
    return JSON.parse(window.sessionStorage.getItem(name));
  } catch {
    return null; // storage may be forbidden: the seat is then lost at a reload, and nothing else
  }
}

function writeJson(name, value) {
  try {
    if (value === null) window.sessionStorage.removeItem(name);
    else window.sessionStorage.setItem(name, JSON.stringify(value));
  } catch {
    return; // as above
  }
}
