/** An empty state: says what to do next, with a command to copy. */

import { h } from "../lib/dom.js";
import { icon } from "./icons.js";
import { copyable } from "./copy.js";

/**
 * empty({title: "No limits yet", text: "…", command: "leaseway limits set maps 100/minute"})
 * @param {{title: string, text?: string, command?: string, action?: any, icon?: string}} what
 */
export function empty({ title, text, command, action, icon: name = "empty" }) {
  return h(
    "div.empty",
    icon(name),
    h("p.empty-title", title),
    text && h("p", text),
    command && copyable(command),
    action,
  );
}

/** @param {string} title @param {string} text @param {any} [action] */
export function problemBox(title, text, action) {
  return h("div.empty.problem", { role: "alert" }, icon("problem"), h("p.empty-title", title), h("p", text), action);
}

/** Grey shapes in the place of what is still on its way. @param {number} [rows] */
export function waiting(rows = 3) {
  const lines = Array.from({ length: rows }, () => h("div.waiting-line"));
  return h("div.waiting", { role: "status", "aria-label": "Loading" }, lines);
}
