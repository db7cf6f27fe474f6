/** Text with a copy button: a command, an id, a payload. */

import { h, text } from "../lib/dom.js";
import { icon } from "./icons.js";

const SHOWN_MS = 1_500;

/** A command, with a button that copies it. @param {string} command */
export function copyable(command) {
  return h("div.copyable", h("code", command), copyButton(command, "Copy the command"));
}

/** @param {string | (() => string)} what @param {string} label */
export function copyButton(what, label) {
  const hint = h("span.sr", { role: "status" });
  const button = h("button.icon-button", { type: "button", "aria-label": label, title: label }, icon("copy"));
  button.addEventListener("click", async () => {
    await copied(typeof what === "string" ? what : what());
    button.replaceChildren(icon("check"));
    text(hint, "Copied");
    setTimeout(() => (button.replaceChildren(icon("copy")), text(hint, "")), SHOWN_MS);
  });
  return h("span.copy", button, hint);
}

/** The clipboard needs https or the loopback; elsewhere a selection has to do. @param {string} value */
async function copied(value) {
  try {
    await navigator.clipboard.writeText(value);
  } catch {
    const area = h("textarea.sr", { value });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
