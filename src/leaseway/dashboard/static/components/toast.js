/** A short message at the edge: announced to screen readers, removed after a while. */

import { said } from "../lib/api.js";
import { find, h } from "../lib/dom.js";
import { icon } from "./icons.js";

const SHOWN_MS = 5_000;
const MOST = 4;

/** @param {string} words @param {"done" | "problem"} [kind] */
export function toast(words, kind = "done") {
  const box = find("#toasts");
  const element = h("div.toast", { data: { kind } }, icon(kind === "done" ? "check" : "problem"), h("span", words));
  box.append(element);
  while (box.children.length > MOST) box.firstElementChild.remove();
  setTimeout(() => element.remove(), kind === "done" ? SHOWN_MS : SHOWN_MS * 2);
}

/** @param {unknown} error @param {string} [what] */
export function toastProblem(error, what) {
  toast(what ? `${what}: ${said(error)}` : said(error), "problem");
}
