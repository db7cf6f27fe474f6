/** API key ─► session. The key is sent to the service once and is not stored here. */

import { logIn, said } from "../lib/api.js";
import { h, text } from "../lib/dom.js";
import { copyable } from "../components/copy.js";

/** @param {() => Promise<void>} enter */
export function loginPage(enter) {
  const wrong = h("p.said", { role: "alert", hidden: true });
  const key = keyInput();
  const go = h("button.primary", { type: "submit" }, "Log in");
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    go.disabled = true;
    wrong.hidden = true;
    try {
      await logIn(key.value.trim());
      key.value = "";
      await enter();
    } catch (error) {
      text(wrong, said(error));
      wrong.hidden = false;
      key.select();
    } finally {
      go.disabled = false;
    }
  };
  const form = h("form.card.login-card", { on: { submit } }, head(), userName(), field(key), wrong, go, hint());
  return h("main.login", { id: "main" }, form);
}

function keyInput() {
  const kind = { type: "password", autocomplete: "current-password", spellcheck: "false" };
  return h("input.mono", {
    id: "key",
    name: "key",
    ...kind,
    required: true,
    placeholder: "lw_…",
    "aria-describedby": "key-hint",
  });
}

/** Password managers store the key under a user name. */
function userName() {
  return h("input", { type: "text", name: "username", autocomplete: "username", value: "leaseway", hidden: true });
}

function head() {
  const mark = new URL("../mark.svg", import.meta.url).href;
  return h("div.login-head", h("img", { src: mark, alt: "", width: 36, height: 36 }), h("h1", "leaseway"));
}

/** @param {HTMLInputElement} input */
function field(input) {
  const about = "The key is exchanged for a browser session and is not stored.";
  return h("div.field", h("label", { for: "key" }, "Key"), input, h("span.hint", { id: "key-hint" }, about));
}

function hint() {
  return h(
    "div.login-hint",
    h("p", "No key yet? Run this on the service’s machine:"),
    copyable("leaseway keys create --role operator"),
  );
}
