/** A notice above the page while the service does not respond: how old the data is. */

import { ApiProblem, said } from "../lib/api.js";
import { h, text } from "../lib/dom.js";
import { moment } from "../lib/format.js";
import { world } from "../lib/store.js";
import { icon } from "./icons.js";

const ANSWERED = ["lanes", "workers", "limits", "budgets", "totals"];

export function notice() {
  const words = h("span");
  const element = h("div.notice", { role: "status", hidden: true }, icon("problem"), words);
  let answeredAt = "";
  for (const kind of ANSWERED)
    world.addEventListener(kind, () => {
      answeredAt = new Date(world.now()).toISOString();
      element.hidden = true;
    });
  world.addEventListener("trouble", (event) => {
    text(words, wordsOf(/** @type {CustomEvent} */ (event).detail.error, answeredAt));
    element.hidden = false;
  });
  return element;
}

/** @param {unknown} error @param {string} answeredAt */
function wordsOf(error, answeredAt) {
  const what = error instanceof ApiProblem && error.status === 0 ? "The service does not respond." : said(error);
  const since = answeredAt ? ` The data shown is from ${moment(answeredAt)}.` : "";
  return `${what}${since} The page retries automatically.`;
}
