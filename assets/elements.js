// In front of a component's script: its view on the page, elements and listeners. Text goes in through textContent.
//
// The component declares MEMORY, the name under which its host keeps the view, and the functions build and listen.

/** Puts a view of this state on its host, drawn and listening. */
function mount(host, state) {
  const view = { host, stops: [], ...state };
  view.dom = build(view);
  host.appendChild(view.dom.root);
  listen(view);
  host[MEMORY] = view;
  return view;
}

function takeDown(view) {
  view.stops.forEach((stop) => stop());
  view.dom.root.remove();
  delete view.host[MEMORY];
}

/** Listens until the view is taken down. */
function listenTo(view, target, type, handler, settings) {
  target.addEventListener(type, handler, settings);
  view.stops.push(() => target.removeEventListener(type, handler, settings));
}

function el(tag, { className, text, dir, on, ...attributes } = {}, children = []) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  if (dir) node.dir = dir;
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const [type, handler] of Object.entries(on ?? {})) node.addEventListener(type, handler);
  node.append(...children);
  return node;
}

function button(text, className, press, attributes = {}) {
  return el("button", { type: "button", className, text, on: { click: press }, ...attributes });
}
