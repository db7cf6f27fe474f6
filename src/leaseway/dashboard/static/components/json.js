/** A stored value: indented, with a copy button, shortened until the user asks for all of it. */

import { fill, h } from "../lib/dom.js";
import { bytes, whole } from "../lib/format.js";
import { copyButton } from "./copy.js";

const SHOWN_MAX = 6_000;
/** Names, strings, numbers and literals; everything between them is unchanged. */
const PARTS = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** @param {any} value @param {string} what said to those that copy it */
export function jsonBlock(value, what) {
  // Without a key, neither the service nor this page can show it.
  if (typeof value?.$encrypted === "string") return h("p.muted", `encrypted (key ${value.$encrypted})`);
  const whole_ = JSON.stringify(value, null, 2) ?? "null";
  const code = h("code");
  const more = h("button.quiet", { type: "button" });
  const show = (/** @type {string} */ shown) => fill(code, coloured(shown));
  show(whole_.slice(0, SHOWN_MAX));
  more.hidden = whole_.length <= SHOWN_MAX;
  more.append(`Show all ${whole(whole_.length)} characters`);
  more.addEventListener("click", () => (show(whole_), (more.hidden = true)));
  const copy = copyButton(whole_, `Copy the ${what}`);
  return h("div.json", h("pre", { tabindex: "0", "aria-label": what }, code), h("div.json-tools", h("small", bytes(new Blob([whole_]).size)), copy), more);
}

/** @param {string} source @returns {(Node | string)[]} */
function coloured(source) {
  const nodes = [];
  let from = 0;
  for (const found of source.matchAll(PARTS)) {
    if (found.index > from) nodes.push(source.slice(from, found.index));
    nodes.push(h(`span.${kindOf(found)}`, found[1] ?? found[0]), found[2] ?? "");
    from = found.index + found[0].length;
  }
  return [...nodes, source.slice(from)];
}

/** @param {RegExpMatchArray} found */
function kindOf(found) {
  if (found[1]) return found[2] ? "json-name" : "json-text";
  return found[3] ? "json-word" : "json-number";
}
