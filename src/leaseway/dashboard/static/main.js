/** key ─► session ─► shell ─► pages, and the live events for all of them. */

import { doorbell, said, whoAmI } from "./lib/api.js";
import { fill, find, h } from "./lib/dom.js";
import { problemBox, waiting } from "./components/empty.js";
import { Shell } from "./shell.js";

const app = find("#app");
let shown = "";
let hasEntered = false;

async function begin() {
  fill(app, waiting(4));
  try {
    const caller = await whoAmI();
    await (caller ? enter() : ask());
  } catch (error) {
    const again = h("button", { type: "button", on: { click: begin } }, "Try again");
    fill(app, h("main", { id: "main" }, problemBox("The service does not respond", said(error), again)));
  }
}

async function enter() {
  // The stream ended with the session: the next session starts again at the same URL.
  if (hasEntered) return location.reload();
  hasEntered = true;
  shown = "shell";
  await new Shell(app).start();
}

async function ask() {
  if (shown === "login") return;
  shown = "login";
  const { loginPage } = await import("./pages/login.js");
  fill(app, loginPage(enter));
  find("#key", app)?.focus();
}

// The URL fragment is used by the router, so the skip link must not change it.
find(".skip").addEventListener("click", (/** @type {Event} */ event) => {
  event.preventDefault();
  find("#main")?.focus();
});
// The session ended: the same page is opened again after the login.
doorbell.addEventListener("login", ask);
begin();
