// The shape track: its elements (text always goes in through textContent).

function build(view) {
  const dom = {};
  dom.problem = el("p", { className: "hst-problem", role: "status", hidden: true });
  dom.sentence = el("p", { className: "hst-sentence" });
  dom.shapes = el("p", { className: "hst-shapes" });
  dom.spoken = el("p", { className: "hs-aside", "aria-live": "polite" });
  dom.track = el("div", { className: "hst-track", role: "group", "aria-label": "The seven steps", tabindex: "0" });
  dom.body = el("div", { className: "hst-body", hidden: true }, [
    el("div", { className: "hst-headline" }, [dom.sentence, dom.shapes, dom.spoken]),
    dom.track,
    el("div", { className: "hst-desk" }, [buildCodePane(view, dom), buildFollow(view, dom)]),
  ]);
  dom.root = el("section", { className: "hst", "aria-label": "Shape track" }, [dom.problem, dom.body]);
  return dom;
}

function buildCodePane(view, dom) {
  dom.flavours = Object.entries(FLAVOURS).map(([flavour, label]) =>
    button(label, "", () => chooseFlavour(view, flavour), { "data-flavour": flavour }),
  );
  dom.copy = button("Copy", "hst-copy", () => copyCode(view), { title: "Copy the whole program: it runs as it is." });
  dom.lines = el("pre", { className: "hst-lines", tabindex: "0", "aria-label": "The program" });
  dom.memory = el("p", { className: "hst-memory" });
  return el("div", { className: "hst-code" }, [
    el("div", { className: "hst-codebar" }, [
      el("div", { className: "hst-switch", role: "group", "aria-label": "Dialect of the code" }, dom.flavours),
      dom.copy,
    ]),
    dom.lines,
    dom.memory,
  ]);
}

function buildFollow(view, dom) {
  dom.letters = ["Q", "K", "V"].map((letter) =>
    button(letter, "", () => chooseLetter(view, letter), { "data-letter": letter, title: `Walk with ${letter}` }),
  );
  dom.story = el("p", { className: "hst-story" });
  dom.element = el("p", { className: "hst-element" });
  dom.next = button("Next step →", "hst-main", () => stepBy(view, 1));
  dom.back = button("←", "", () => stepBy(view, -1), { "aria-label": "Step back", title: "Step back" });
  dom.play = button("Play", "", () => togglePlay(view));
  dom.predict = button("Predict", "", () => startGuess(view));
  dom.breakIt = button("Break it", "", () => breakIt(view));
  dom.facts = el("p", { className: "hst-facts" });
  dom.guess = buildGuess(view, dom);
  dom.walk = el("div", { className: "hst-walk" }, [dom.element, dom.story]);
  dom.buttons = el("div", { className: "hst-buttons" }, [dom.back, dom.next, dom.play, dom.breakIt, dom.predict]);
  return el("div", { className: "hst-follow" }, [
    el("div", { className: "hst-followbar" }, [
      el("h2", { text: "Follow one number" }),
      el("div", { className: "hst-switch hst-letters", role: "group", "aria-label": "Which projection" }, dom.letters),
    ]),
    dom.walk,
    dom.guess,
    dom.buttons,
    dom.facts,
  ]);
}

function buildGuess(view, dom) {
  dom.guessLine = el("code", {});
  dom.guessBox = el("input", {
    type: "text",
    id: "hst-guess",
    inputmode: "text",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "for example 4, 8",
  });
  dom.guessSaid = el("p", { className: "hst-said", role: "status" });
  const form = el("form", { on: { submit: (event) => { event.preventDefault(); checkGuess(view); } } }, [
    el("label", { for: "hst-guess", text: "The shape after this line" }),
    dom.guessLine,
    el("div", { className: "hst-buttons" }, [
      dom.guessBox,
      el("button", { type: "submit", className: "hst-main", text: "Check" }),
      button("Show me", "", () => revealGuess(view)),
      button("Stop", "", () => endGuess(view)),
    ]),
    dom.guessSaid,
  ]);
  return el("div", { className: "hst-guess", hidden: true }, [form]);
}

// ---------------------------------------------------------------------------------------------------------------
// Cards

function buildCards(view) {
  const path = pathOf(view);
  const stops = view.scene.stops.filter(([mark]) => path.some((tensor) => tensor.number === mark));
  view.cards = stops.map(([mark, title]) => buildCard(view, mark, title, path.filter((one) => one.number === mark)));
  view.dom.track.replaceChildren(...view.cards.map((card) => card.node));
}

function buildCard(view, mark, title, parts) {
  const card = { mark, title, parts, tensor: parts.at(-1), block: null };
  card.button = button("", "hst-title", () => goTo(view, shownIn(view, card).key));
  card.canvas = el("canvas", { role: "img" });
  card.canvas.addEventListener("click", (event) => pressed(view, card, event));
  card.canvas.addEventListener("pointermove", (event) => pointed(view, card, event));
  for (const side of ["top", "left", "bottom"]) card[side] = el("div", { className: `hst-${side}` });
  card.frame = el("div", { className: "hst-frame" }, [card.top, card.left, card.canvas, card.bottom]);
  card.hidden = el("div", { className: "hst-unknown", text: "?", hidden: true });
  card.line = el("code", { className: "hst-line" });
  card.shape = el("p", { className: "hst-shape" });
  card.picks = parts.map((tensor) => button(tensor.name, "", () => goTo(view, tensor.key)));
  card.choose = el("div", { className: "hst-parts", role: "group", "aria-label": `Parts of step ${mark}` }, card.picks);
  card.node = el("article", { className: "hst-card", "data-number": mark }, [
    card.button,
    card.choose,
    card.frame,
    card.hidden,
    card.line,
    card.shape,
  ]);
  return card;
}

/** The tensor a card shows: the one stood at, else its last. */
function shownIn(view, card) {
  return card.parts.find((tensor) => tensor.key === view.step) ?? card.parts.at(-1);
}

/** Whether a prediction keeps a tensor's shape secret. */
function isSecret(view, tensor) {
  if (!view.guess) return false;
  const { tensors } = view.scene;
  const target = view.scene.byKey.get(view.guess.target);
  const from = tensors.findIndex((one) => one.number === target.number && one.name === target.name);
  return tensors.indexOf(tensor) >= from;
}
