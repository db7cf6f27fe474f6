/** The base class of pages. A page is a custom element; the router creates and removes it.
 *
 *     export default class extends Page {
 *       static title = "Limits";
 *       async open() { this.append(this.heading("Limits"), …); this.every(5, () => this.refresh()); }
 *     }
 */

import { ApiProblem, isLeft, said } from "./api.js";
import { fill, h } from "./dom.js";
import { world } from "./store.js";
import { problemBox } from "../components/empty.js";

export class Page extends HTMLElement {
  static title = "";
  /** Of the path: /jobs/:id gives {id}. @type {Record<string, string>} */
  params = {};
  /** The query of the URL. */
  query = new URLSearchParams();
  #leaving = new AbortController();

  /** Aborted when the user leaves the page: pass it to requests and event listeners. */
  get signal() {
    return this.#leaving.signal;
  }

  connectedCallback() {
    this.classList.add("page");
    Promise.resolve()
      .then(() => this.open())
      .catch((error) => this.fail(error));
  }

  disconnectedCallback() {
    this.#leaving.abort();
  }

  /** For each page to say: draw, listen, ask. @returns {void | Promise<void>} */
  open() {}

  /** The address's ? changed while we were there. @param {URLSearchParams} query */
  moved(query) {
    this.query = query;
  }

  /** The page cannot be shown at all. @param {unknown} error */
  fail(error) {
    if (isLeft(error) || this.signal.aborted) return;
    console.warn(error);
    fill(
      this,
      this.heading(/** @type {any} */ (this.constructor).title),
      problemBox("This page cannot be shown", said(error)),
    );
  }

  /** The page's title with what can be done. @param {string} title @param {...any} actions */
  heading(title, ...actions) {
    const name = h("h1", { tabindex: "-1" }, title);
    return h("header.page-head", name, actions.length > 0 && h("div.actions", actions));
  }

  /** @param {string} kind of the world's news, see store.js @param {(detail: any) => void} listen */
  when(kind, listen) {
    world.addEventListener(kind, (event) => listen(/** @type {CustomEvent} */ (event).detail), { signal: this.signal });
  }

  /**
   * Calls `work` now and periodically, while the page is visible: a hidden tab sends no requests.
   * @param {number} seconds
   * @param {() => any} step
   */
  every(seconds, step) {
    const turn = async () => {
      if (this.signal.aborted) return;
      if (!document.hidden)
        await Promise.resolve()
          .then(step)
          .catch((error) => this.stumble(error));
      if (!this.signal.aborted) setTimeout(turn, seconds * 1000);
    };
    return turn();
  }

  /**
   * A call of `every` failed; the next one may succeed. A notice above the page reports that the service does not respond.
   * @param {unknown} error
   */
  stumble(error) {
    const isSilence = error instanceof ApiProblem && error.status === 0;
    if (!isLeft(error) && !isSilence) console.warn(error);
  }
}

/**
 * A page's own style sheet, loaded with it: useStyles(import.meta.url, "../styles/jobs.css")
 * @param {string} from
 * @param {string} path
 */
export function useStyles(from, path) {
  const href = new URL(path, from).href;
  if (document.querySelector(`link[href="${CSS.escape(href)}"]`)) return;
  document.head.append(h("link", { rel: "stylesheet", href }));
}
