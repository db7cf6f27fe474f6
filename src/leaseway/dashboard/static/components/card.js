/** A titled box. */

import { h, newId } from "../lib/dom.js";

/**
 * @param {string} title
 * @param {{class?: string, more?: any, flush?: boolean}} how `flush`: the body brings its own edges, like a table
 * @param {...any} body
 */
export function card(title, how, ...body) {
  const id = newId("card");
  const head = h("div.card-head", h("h2", { id }, title), how.more);
  return h(
    "section.card",
    { class: how.class ?? "", "aria-labelledby": id },
    head,
    how.flush ? body : h("div.card-body", body),
  );
}

/** "All limits ›" @param {string} words @param {string} href */
export function more(words, href) {
  return h("a.more", { href }, words);
}
