/** key ─► session ─► shell ─► pages, and the news that reach all of them. */

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
    fill(app, h("main", { id: "main" }, problemBox("The service does not answer", said(error), again)));
  }
}

async function enter() {
  // A session that ended has taken the news along: with the next one, everything begins anew, at the same address.
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

// Addresses are in the #, so the way to the content is no address.
find(".skip").addEventListener("click", (/** @type {Event} */ event) => {
  event.preventDefault();
  find("#main")?.focus();
});
// The session ended while we were at work: what was open is opened again after the key.
doorbell.addEventListener("login", ask);
begin();
