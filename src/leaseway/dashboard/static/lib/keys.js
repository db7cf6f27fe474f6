/** Keyboard shortcuts. */

import { find, h } from "./dom.js";
import { go } from "./router.js";

/** After g. @type {Record<string, [string, string]>} */
const PLACES = {
  o: ["/", "Overview"],
  j: ["/jobs", "Jobs"],
  d: ["/dead", "Dead letters"],
  i: ["/imports", "Imports"],
  a: ["/lanes", "Lanes"],
  l: ["/limits", "Limits"],
  b: ["/budgets", "Budgets"],
  w: ["/workers", "Workers"],
};
const PATIENCE_MS = 1_200;
let waitingUntil = 0;

/** @param {{nextTheme: () => void}} shell */
export function listenToKeys(shell) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (isTyping(event)) return leaveByEsc(event);
    if (find("dialog[open]")) return;
    if (press(event.key, shell)) event.preventDefault();
  });
}

/** @param {string} key @param {{nextTheme: () => void}} shell @returns {boolean} whether it meant something */
function press(key, shell) {
  if (Date.now() < waitingUntil) return leap(key);
  if (key === "g") waitingUntil = Date.now() + PATIENCE_MS;
  else if (key === "/") search();
  else if (key === "j" || key === "ArrowDown") return step(1, key);
  else if (key === "k" || key === "ArrowUp") return step(-1, key);
  else if (key === "?") showKeys();
  else if (key === "t") shell.nextTheme();
  else if (key === "Escape") /** @type {any} */ (document.activeElement)?.blur?.();
  else return false;
  return true;
}

/** @param {string} key */
function leap(key) {
  waitingUntil = 0;
  const place = PLACES[key];
  if (place) go(place[0]);
  return place !== undefined;
}

function search() {
  const field = find("[data-search]");
  if (field) field.focus();
  else go("/jobs", { search: 1 });
}

/**
 * Moves from row to row; the arrow keys scroll the page while no row has the focus.
 * @param {number} by
 * @param {string} key
 */
function step(by, key) {
  /** @type {HTMLElement[]} */
  const rows = [...document.querySelectorAll("[data-row]")].map((row) => /** @type {HTMLElement} */ (row));
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  if (!rows.length || (at < 0 && key.startsWith("Arrow"))) return false;
  const next = at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + by));
  rows[next].focus();
  rows[next].scrollIntoView({ block: "nearest" });
  return true;
}

/** @param {KeyboardEvent} event */
function isTyping(event) {
  return (
    /** @type {any} */ (event.target)?.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable]") !=
    null
  );
}

/** @param {KeyboardEvent} event */
function leaveByEsc(event) {
  if (event.key === "Escape" && !find("dialog[open]")) /** @type {any} */ (event.target).blur();
}

/** @type {string[][]} */
const EVERYWHERE = [
  ["/", "Search jobs"],
  ["j  k", "Next and previous row"],
  ["Enter", "Open the row"],
  ["Esc", "Close, or leave a field"],
  ["t", "Light, dark or system theme"],
  ["?", "Show these shortcuts"],
];

/** @param {string} title @param {string[][]} keys */
function group(title, keys) {
  const rows = keys.map(([key, what]) => [
    h(
      "span",
      key.split("  ").map((each) => [h("kbd", each), " "]),
    ),
    h("span", what),
  ]);
  return h("section", h("h3", title), h("div.keys", rows));
}

export function showKeys() {
  const places = Object.entries(PLACES).map(([key, [, name]]) => [`g  ${key}`, name]);
  const close = h("button", { type: "submit" }, "Close");
  const form = h(
    "form.dialog-form",
    { method: "dialog" },
    h("h2", { id: "keys-title" }, "Keyboard"),
    h("div.key-groups", group("Everywhere", EVERYWHERE), group("Go to", places)),
    h("div.dialog-foot", close),
  );
  const dialog = h("dialog.wide", { "aria-labelledby": "keys-title" }, form);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  close.focus();
}
