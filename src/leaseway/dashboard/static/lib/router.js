/** URLs are #/jobs/…: the service serves one page, and every URL can be shared. */

import { queryOf } from "./api.js";
import { fill, h } from "./dom.js";
import { problemBox } from "../components/empty.js";

/** @typedef {{path: string, page: string, nav: string}} Route */

/** `nav` is the entry of the menu that is lit. @type {Route[]} */
export const ROUTES = [
  { path: "/", page: "overview", nav: "/" },
  { path: "/jobs", page: "jobs", nav: "/jobs" },
  { path: "/jobs/:id", page: "job", nav: "/jobs" },
  { path: "/dead", page: "dead", nav: "/dead" },
  { path: "/imports", page: "imports", nav: "/imports" },
  { path: "/imports/:source/:run", page: "import", nav: "/imports" },
  { path: "/lanes", page: "lanes", nav: "/lanes" },
  { path: "/limits", page: "limits", nav: "/limits" },
  { path: "/budgets", page: "budgets", nav: "/budgets" },
  { path: "/workers", page: "workers", nav: "/workers" },
];
const RELOADED = "leaseway.reloaded";

/** @param {string} path @param {Record<string, any>} [query] an address for href and go() */
export function link(path, query) {
  return `#${path}${queryOf(query)}`;
}

/** @param {string} path @param {Record<string, any>} [query] */
export function go(path, query) {
  location.hash = link(path, query);
}

/** Changes the ? of where we are, without a step in the history. @param {Record<string, any>} query */
export function amend(query) {
  const { path } = place();
  history.replaceState(null, "", link(path, query));
}

export function place() {
  const [path, query = ""] = location.hash.replace(/^#/, "").split("?");
  return { path: path || "/", query: new URLSearchParams(query) };
}

/** @param {string} path @returns {{route: Route, params: Record<string, string>} | null} */
export function match(path) {
  for (const route of ROUTES) {
    const names = [...route.path.matchAll(/:(\w+)/g)].map(([, name]) => name);
    const found = new RegExp(`^${route.path.replace(/:\w+/g, "([^/]+)")}/?$`).exec(path);
    if (found) return { route, params: Object.fromEntries(names.map((name, at) => [name, decoded(found[at + 1])])) };
  }
  return null;
}

/** @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export class Router {
  #turn = 0;
  #shown = "";

  /** @param {HTMLElement} outlet @param {(route: Route | null, title: string) => void} moved */
  constructor(outlet, moved) {
    this.outlet = outlet;
    this.moved = moved;
  }

  start() {
    addEventListener("hashchange", () => this.show());
    return this.show();
  }

  async show() {
    const { path, query } = place();
    const current = /** @type {any} */ (this.outlet.firstElementChild);
    if (path === this.#shown && current?.moved) return current.moved(query);
    const turn = (this.#turn += 1);
    const found = match(path);
    const page = await (found ? made(found.route.page) : unknown(path));
    if (turn !== this.#turn) return; // the user left while the page was loading
    this.#shown = path;
    Object.assign(page, { params: found?.params ?? {}, query });
    fill(this.outlet, page);
    scrollTo(0, 0);
    this.moved(found?.route ?? null, page.constructor.title ?? "");
  }

  /** Opens the same page again. */
  again() {
    this.#shown = "";
    return this.show();
  }
}

/** @param {string} name @returns {Promise<any>} */
async function made(name) {
  const tag = `page-${name}`;
  try {
    if (!customElements.get(tag)) customElements.define(tag, (await import(`../pages/${name}.js`)).default);
    sessionStorage.removeItem(RELOADED);
    return document.createElement(tag);
  } catch (error) {
    // The service was upgraded and has other files: reload the page, but only once.
    if (!sessionStorage.getItem(RELOADED)) {
      sessionStorage.setItem(RELOADED, "1");
      location.reload();
    }
    console.warn(error);
    return h(
      "div.page",
      problemBox("This page cannot be loaded", "The service may have been upgraded. Reload the page."),
    );
  }
}

/** @param {string} path */
async function unknown(path) {
  return h("div.page", problemBox("There is no such page", `There is no page at ${path}. Use the menu.`));
}
