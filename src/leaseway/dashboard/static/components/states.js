/** All jobs as one bar, cut by state. */

import { fill, h, text } from "../lib/dom.js";
import { short, whole } from "../lib/format.js";

export const STATES = /** @type {const} */ (["ready", "scheduled", "leased", "done", "failed", "cancelled"]);

export class StateBar extends HTMLElement {
  #bar = h("div.state-bar", { "aria-hidden": "true" });
  #legend = h("ul.state-legend");
  /** @type {Map<string, {part: any, value: any}>} */
  #parts = new Map();

  connectedCallback() {
    if (this.#parts.size) return;
    for (const state of STATES) this.#add(state);
    fill(this, this.#bar, this.#legend);
  }

  /** @param {string} state */
  #add(state) {
    const part = h("span", { data: { tone: state } });
    const value = h("a.state-value", {
      href: `#/jobs?state=${["ready", "scheduled"].includes(state) ? "pending" : state}`,
    });
    this.#bar.append(part);
    this.#legend.append(h("li", h("span.key", { data: { tone: state } }, state), value));
    this.#parts.set(state, { part, value });
  }

  /** @param {Record<string, number>} totals */
  show(totals) {
    const all = STATES.reduce((sum, state) => sum + totals[state], 0);
    for (const [state, { part, value }] of this.#parts) {
      const count = totals[state];
      part.style.flexGrow = all ? String(count / all) : "0";
      part.hidden = !count;
      text(value, short(count, 1_000_000));
      value.title = `${whole(count)} ${state}`;
    }
  }
}

customElements.define("lw-states", StateBar);
