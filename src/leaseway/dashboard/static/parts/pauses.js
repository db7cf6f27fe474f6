/** Pause and resume: confirmed first, because it affects the work of all tenants. */

import { api } from "../lib/api.js";
import { attribute, fill, h } from "../lib/dom.js";
import { confirmed } from "../components/dialog.js";
import { icon } from "../components/icons.js";
import { toast, toastProblem } from "../components/toast.js";

/**
 * `what`: limit maps; `words`: the effect of a pause; `path` and `body`: the request.
 * @typedef {{what: string, isPaused: boolean, words: string, path: string, body?: any, facts?: [string, any][]}} Switch
 */

/** @param {Switch} given @returns {Promise<boolean>} whether it was done */
export async function switchPause({ what, isPaused, words, path, body, facts }) {
  const verb = isPaused ? "Resume" : "Pause";
  const text = isPaused ? "Jobs that wait for it can start again." : words;
  const keep = isPaused ? "Leave it paused" : "Leave it running";
  if (!(await confirmed({ title: `${verb} ${what}?`, text, facts, action: verb, keep }))) return false;
  try {
    await api.post(`${path}/${verb.toLowerCase()}`, body);
    toast(`${what[0].toUpperCase()}${what.slice(1)} is ${isPaused ? "resumed" : "paused"}`);
    return true;
  } catch (error) {
    toastProblem(error, isPaused ? "Not resumed" : "Not paused");
    return false;
  }
}

/** @param {string} what @param {boolean} isPaused @param {() => void} click */
export function pauseButton(what, isPaused, click) {
  const button = h("button.icon-button.pause", { type: "button", on: { click } });
  drawPause(button, what, isPaused);
  return button;
}

/** It says what it would do. @param {any} button @param {string} what @param {boolean} isPaused */
export function drawPause(button, what, isPaused) {
  const verb = isPaused ? "Resume" : "Pause";
  if (button.title === verb) return;
  attribute(button, "aria-label", `${verb} ${what}`);
  attribute(button, "title", verb);
  fill(button, icon(isPaused ? "play" : "pause"));
}

/** @param {HTMLElement} board of a limit or a budget @param {{name: string, paused: boolean}} thing */
export function drawPaused(board, { name, paused }) {
  const button = board.querySelector(".pause");
  if (button) drawPause(button, name, paused);
  /** @type {HTMLElement} */ (board.querySelector(".chip")).hidden = !paused;
}
