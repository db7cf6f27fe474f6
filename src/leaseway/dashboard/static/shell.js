/** The frame of all pages: menu, live indicator, theme, session. */

import { logOut, may, me } from "./lib/api.js";
import { attribute, fill, find, h, text } from "./lib/dom.js";
import { short } from "./lib/format.js";
import { listenToKeys, showKeys } from "./lib/keys.js";
import { Router } from "./lib/router.js";
import { world } from "./lib/store.js";
import { nextTheme, theme } from "./lib/theme.js";
import { icon } from "./components/icons.js";
import { notice } from "./components/notice.js";
import { toastProblem } from "./components/toast.js";

/** @type {[string, [string, string, string][]][]} */
const MENU = [
  [
    "Work",
    [
      ["/", "Overview", "overview"],
      ["/jobs", "Jobs", "jobs"],
      ["/dead", "Dead letters", "dead"],
      ["/imports", "Imports", "imports"],
    ],
  ],
  [
    "Control",
    [
      ["/lanes", "Lanes", "lanes"],
      ["/limits", "Limits", "limits"],
      ["/budgets", "Budgets", "budgets"],
      ["/workers", "Workers", "workers"],
    ],
  ],
];
/** @type {Record<string, [string, string]>} */
const WAYS = {
  "": ["connecting", "Connecting to the service"],
  live: ["live", "Live updates over WebSocket"],
  stream: ["live", "Live updates over an event stream; WebSockets are blocked"],
  polling: ["polling", "Polling every few seconds; streams are blocked"],
  offline: ["offline", "The service does not respond; the data may be outdated"],
};
/** @type {Record<string, string>} */
const THEMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
/** Pages that only operators may see. */
const OPERATORS = ["/limits", "/budgets", "/workers"];
let listens = false;

/** @param {boolean} isOperator @returns {typeof MENU} */
function menuFor(isOperator) {
  return MENU.map(([name, entries]) => [name, entries.filter(([path]) => isOperator || !OPERATORS.includes(path))]);
}

export class Shell {
  /** @param {HTMLElement} app */
  constructor(app) {
    this.app = app;
    this.outlet = h("main.main", { id: "main", tabindex: "-1" });
    this.dead = h("span.badge");
    this.mark = h("span.live-mark", { role: "status" });
    this.themeButton = h("button.icon-button", { type: "button", on: { click: () => this.nextTheme() } });
    this.hasMoved = false;
    this.router = new Router(this.outlet, (route, title) => this.moved(route, title));
  }

  async start() {
    fill(this.app, h("div.shell", this.side(), h("div.content", notice(), this.outlet)));
    this.drawTheme();
    this.drawWay();
    world.addEventListener("way", () => this.drawWay());
    world.addEventListener("totals", () =>
      text(this.dead, world.totals?.failed ? short(world.totals.failed, 10_000) : ""),
    );
    if (!listens) listenToKeys({ nextTheme: () => this.nextTheme() });
    listens = true;
    world.start();
    await this.router.start();
  }

  side() {
    const mark = new URL("./mark.svg", import.meta.url).href;
    const brand = h("a.brand", { href: "#/" }, h("img", { src: mark, alt: "", width: 22, height: 22 }), "leaseway");
    return h("header.side", brand, this.menu(), this.foot());
  }

  menu() {
    const groups = menuFor(may("operate")).map(([name, entries]) => [
      h("span.nav-group", name),
      entries.map((entry) => this.entry(entry)),
    ]);
    return h("nav.nav", { "aria-label": "Pages" }, groups);
  }

  /** @param {[string, string, string]} entry */
  entry([path, name, drawing]) {
    return h("a", { href: `#${path}`, data: { nav: path } }, icon(drawing), name, path === "/dead" && this.dead);
  }

  foot() {
    const who = me();
    const keys = h(
      "button.icon-button",
      { type: "button", "aria-label": "Keyboard", title: "Keyboard (?)", on: { click: showKeys } },
      icon("help"),
    );
    const name = who?.role === "operator" ? "operator" : (who?.tenant ?? "");
    return h(
      "div.side-foot",
      this.mark,
      h("span.who", { title: who?.name ?? "" }, name),
      h("div.side-tools", this.themeButton, keys, who?.csrf_token && this.leave()),
    );
  }

  leave() {
    const click = () => logOut().then(() => location.reload(), toastProblem);
    return h(
      "button.icon-button",
      { type: "button", "aria-label": "Log out", title: "Log out", on: { click } },
      icon("out"),
    );
  }

  nextTheme() {
    nextTheme();
    this.drawTheme();
  }

  drawTheme() {
    const now = theme();
    attribute(this.themeButton, "aria-label", THEMES[now]);
    attribute(this.themeButton, "title", `${THEMES[now]} (t)`);
    fill(this.themeButton, icon({ auto: "auto", light: "sun", dark: "moon" }[now] ?? "auto"));
  }

  drawWay() {
    const [word, meaning] = WAYS[world.way] ?? WAYS[""];
    attribute(this.mark, "data-way", world.way);
    attribute(this.mark, "title", meaning);
    text(this.mark, word);
  }

  /** @param {import("./lib/router.js").Route | null} route @param {string} title */
  moved(route, title) {
    document.title = title ? `${title} · leaseway` : "leaseway";
    for (const entry of this.app.querySelectorAll("[data-nav]")) {
      const isHere = /** @type {HTMLElement} */ (entry).dataset.nav === route?.nav;
      attribute(entry, "aria-current", isHere ? "page" : null);
      if (isHere) entry.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    // Screen readers announce the heading of a new page; they read the first page without help.
    if (this.hasMoved) requestAnimationFrame(() => find("h1", this.outlet)?.focus({ preventScroll: true }));
    this.hasMoved = true;
  }
}
