/** Times that update themselves: `until(iso)` counts down, `since(iso)` counts up. */

import { ago, fully, ms, span } from "../lib/format.js";
import { h, text } from "../lib/dom.js";
import { world } from "../lib/store.js";

class Ticking extends HTMLElement {
  /** @type {() => void} */
  #draw = () => this.draw();

  connectedCallback() {
    world.addEventListener("tick", this.#draw);
    this.draw();
  }

  disconnectedCallback() {
    world.removeEventListener("tick", this.#draw);
  }

  draw() {}
}

class Until extends Ticking {
  draw() {
    const left = (ms(this.dataset.at) - world.now()) / 1000;
    text(this, left > 0 ? `${this.dataset.before ?? "in "}${span(Math.ceil(left))}` : (this.dataset.over ?? "now"));
  }
}

class Since extends Ticking {
  draw() {
    text(this, ago(this.dataset.at, world.now()));
  }
}

customElements.define("lw-until", Until);
customElements.define("lw-since", Since);

/** @param {string | null | undefined} instant @param {{before?: string, over?: string}} [words] */
export function until(instant, { before = "in ", over = "now" } = {}) {
  if (!instant) return h("span.muted", "–");
  return h("lw-until", { data: { at: instant, before, over }, title: fully(instant) });
}

/** @param {string | null | undefined} instant */
export function since(instant) {
  if (!instant) return h("span.muted", "–");
  return h("lw-since", { data: { at: instant }, title: fully(instant) });
}

/** A span from now on, as the service told it, becomes an instant that can be counted down. @param {number} seconds */
export function instantIn(seconds) {
  return new Date(world.now() + seconds * 1000).toISOString();
}
