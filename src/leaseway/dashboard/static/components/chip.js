/** A state as a word and a colour; the word alone is sufficient. */

import { attribute, h, text } from "../lib/dom.js";

/** @param {string} state pending, leased, done, failed, cancelled (ready and scheduled are kinds of pending) */
export function chip(state) {
  return h("span.chip", { data: { state } }, state);
}

/** @param {HTMLElement} element @param {string} state */
export function setChip(element, state) {
  attribute(element, "data-state", state);
  text(element, state);
}

/** @param {string} words @param {"good" | "warn" | "bad" | "leased" | ""} [tone] */
export function note(words, tone = "") {
  return h("span.chip", { data: { tone } }, words);
}
