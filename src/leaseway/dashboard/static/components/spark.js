/** A sparkline beside a number. */

import { fill, h, svg } from "../lib/dom.js";

/** @typedef {import("./scale.js").Point} Point */

class Spark extends HTMLElement {
  /** @param {Point[]} points @param {string} [tone] */
  show(points, tone = "accent") {
    const values = points.slice(-60).map((point) => point.value);
    const top = Math.max(1e-9, ...values);
    const x = (/** @type {number} */ at) => (values.length < 2 ? 0 : (at / (values.length - 1)) * 100);
    const d = values
      .map((value, at) => `${at ? "L" : "M"}${x(at).toFixed(1)} ${(22 - (value / top) * 20).toFixed(1)}`)
      .join("");
    const isFlat = values.length < 2 || values.every((value) => value === 0);
    const line = svg("path.line", { d: isFlat ? "M0 22L100 22" : d, "vector-effect": "non-scaling-stroke" });
    const shown = {
      viewBox: "0 0 100 24",
      preserveAspectRatio: "none",
      "aria-hidden": "true",
      data: { tone: isFlat ? "flat" : tone },
    };
    fill(this, svg("svg", shown, line));
  }
}

customElements.define("lw-spark", Spark);

/** @returns {any} */
export function spark() {
  return h("lw-spark.spark");
}
