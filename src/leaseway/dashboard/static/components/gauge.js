/** How much of a limit is in use: an arc with text beside it. */

import { attribute, h, svg, text } from "../lib/dom.js";
import { percent } from "../lib/format.js";

const RADIUS = 30;
const ARC = Math.PI * RADIUS;
const FULL_FROM = 0.95;

/** A limit that is used up does what it is there for: it is worth a look, and no alarm. @param {number} share */
export function toneOf(share) {
  return share >= FULL_FROM ? "warn" : "accent";
}

class Gauge extends HTMLElement {
  #value = svg("path.gauge-value", { d: half(), "stroke-dasharray": `0 ${ARC}` });
  #words = svg("text.gauge-words", { x: 38, y: 36, "text-anchor": "middle" });
  #drawn = false;

  #draw() {
    if (this.#drawn) return;
    this.#drawn = true;
    this.classList.add("gauge");
    attribute(this, "role", "meter");
    attribute(this, "aria-valuemin", "0");
    attribute(this, "aria-valuemax", "100");
    this.append(
      svg(
        "svg",
        { viewBox: "0 0 76 44", "aria-hidden": "true" },
        svg("path.gauge-track", { d: half() }),
        this.#value,
        this.#words,
      ),
    );
  }

  /** @param {{share: number | null, label: string, words?: string, tone?: string | null}} level */
  show({ share, label, words, tone }) {
    this.#draw();
    const full = Math.max(0, Math.min(1, share ?? 0));
    attribute(this.#value, "stroke-dasharray", `${(full * ARC).toFixed(1)} ${ARC}`);
    attribute(this, "data-tone", tone ?? (share == null ? "none" : toneOf(full)));
    attribute(this, "aria-label", label);
    attribute(this, "aria-valuenow", Math.round(full * 100));
    attribute(this, "aria-valuetext", share == null ? "not known" : (words ?? percent(share)));
    text(this.#words, share == null ? "–" : percent(share).replace(/\.\d/, ""));
  }
}

function half() {
  return `M${38 - RADIUS} 38A${RADIUS} ${RADIUS} 0 0 1 ${38 + RADIUS} 38`;
}

customElements.define("lw-gauge", Gauge);

/** @returns {any} */
export function gauge() {
  return document.createElement("lw-gauge");
}

/** A flat one, for tables. @param {number | null} share @param {string} label @param {string} [tone] */
export function meter(share, label, tone) {
  const full = Math.max(0, Math.min(1, share ?? 0));
  const value = h("span.meter-value", { vars: { "--share": `${(full * 100).toFixed(1)}%` } });
  const told = {
    role: "meter",
    "aria-label": label,
    "aria-valuemin": 0,
    "aria-valuemax": 100,
    "aria-valuenow": Math.round(full * 100),
  };
  return h("span.meter", { ...told, data: { tone: tone ?? toneOf(full) } }, value);
}
