/** A large number with a smaller unit: 1,675 jobs, 8.34/s, 1 min 40 s. */

import { fill, h } from "../lib/dom.js";

const PARTS = /[\d.,–]+|[^\d.,–]+/g;
const NUMBER = /[\d–]/;

/** @param {HTMLElement} element @param {string} said */
export function showFigure(element, said) {
  if (element.textContent === said) return;
  fill(
    element,
    (said.match(PARTS) ?? []).map((part) => (NUMBER.test(part) ? part : h("span.unit", part))),
  );
}
