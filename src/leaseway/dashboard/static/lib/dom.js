/** Creates elements from parts and never from markup: the contents of a payload stay text. */

/** Lists of children may be nested. @typedef {Node | string | number | null | undefined | false | any[]} Child */
/** @typedef {{class?: string, on?: Record<string, (event: any) => void>, data?: Record<string, string|number>,
 *   vars?: Record<string, string|number>, [name: string]: any}} Props */

const SVG = "http://www.w3.org/2000/svg";
/** Attributes only set the initial state; what the user changes afterwards is a property. */
const PROPERTIES = new Set(["value", "checked", "selected", "indeterminate", "disabled", "hidden", "open"]);

/**
 * h("button.primary", {type: "button", on: {click: save}}, "Save")
 * @param {string} name a tag, with classes after dots
 * @param {Props | Child} [props]
 * @param {...Child} children
 * @returns {any} an HTMLElement
 */
export function h(name, props, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  return filled(element, props, children);
}

/**
 * The same for drawings: svg("path.line", {d: "M0 0"})
 * @param {string} name
 * @param {Props | Child} [props]
 * @param {...Child} children
 * @returns {any} an SVGElement
 */
export function svg(name, props, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElementNS(SVG, tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  return filled(element, props, children);
}

/** @param {HTMLElement | SVGElement} element @param {any} props @param {Child[]} children */
function filled(element, props, children) {
  if (isChild(props)) children.unshift(props);
  else set(element, props);
  append(element, children);
  return element;
}

/** @param {any} value */
function isChild(value) {
  return value == null || typeof value !== "object" || value instanceof Node || Array.isArray(value);
}

/** @param {any} element @param {Props} props */
export function set(element, props) {
  for (const [name, value] of Object.entries(props)) {
    if (name === "on") for (const [event, listen] of Object.entries(value)) element.addEventListener(event, listen);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "vars") for (const [key, to] of Object.entries(value)) element.style.setProperty(key, String(to));
    else if (name === "class") element.classList.add(...String(value).split(" ").filter(Boolean));
    else if (PROPERTIES.has(name) && name in element) element[name] = value;
    else attribute(element, name, value);
  }
  return element;
}

/** null, undefined and false take it away. @param {Element} element @param {string} name @param {any} value */
export function attribute(element, name, value) {
  if (/^on|^style$|^srcdoc$/i.test(name)) throw new TypeError(`${name} would be code in an attribute`);
  if (value == null || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value))
    element.setAttribute(name, value === true ? "" : String(value));
}

/** @param {Node} parent @param {Child[]} children */
export function append(parent, children) {
  for (const child of children) {
    if (child == null || child === false) continue;
    if (Array.isArray(child)) append(parent, child);
    else parent.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** In place of what was there. @template {Element} E @param {E} parent @param {...Child} children @returns {E} */
export function fill(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
  return parent;
}

/** Writes only what is new, so that nothing flickers and selections stay. @param {Node} element @param {any} value */
export function text(element, value) {
  const now = value == null ? "" : String(value);
  if (element.textContent !== now) element.textContent = now;
}

/**
 * Makes the children of `parent` match the items, in order: kept by key, created if new, updated if changed.
 * @template T
 * @param {Element} parent
 * @param {T[]} items
 * @param {(item: T) => string} keyOf
 * @param {(item: T) => HTMLElement | SVGElement} make
 * @param {(element: any, item: T) => void} [update]
 */
export function keyed(parent, items, keyOf, make, update) {
  /** @type {Map<string, any>} */
  const known = /** @type {any} */ (parent).__keyed ?? new Map();
  /** @type {Map<string, any>} */
  const next = new Map();
  for (const item of items) {
    const key = keyOf(item);
    const element = known.get(key) ?? make(item);
    update?.(element, item);
    next.set(key, element);
  }
  for (const [key, element] of known) if (!next.has(key)) element.remove();
  let at = parent.firstElementChild;
  for (const element of next.values()) {
    if (at && element === at) at = at.nextElementSibling;
    else parent.insertBefore(element, at);
  }
  /** @type {any} */ (parent).__keyed = next;
}

/** A new id for aria-labelledby and similar attributes. */
let ids = 0;
export function newId(prefix = "id") {
  ids += 1;
  return `${prefix}-${ids}`;
}

/** @param {string} selector @param {ParentNode} [within] @returns {any} */
export function find(selector, within = document) {
  return within.querySelector(selector);
}
