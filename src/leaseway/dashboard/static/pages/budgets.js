/** Budgets: limits per calendar window, spent and held amounts, and the projection. */

import { api, at, may } from "../lib/api.js";
import { fill, h, keyed, text } from "../lib/dom.js";
import { money } from "../lib/format.js";
import { Page } from "../lib/page.js";
import { world } from "../lib/store.js";
import { burn, outlook, paceOf } from "../components/burn.js";
import { confirmed, filledIn, fromTo } from "../components/dialog.js";
import { note } from "../components/chip.js";
import { empty, waiting } from "../components/empty.js";
import { icon } from "../components/icons.js";
import { until } from "../components/times.js";
import { toast, toastProblem } from "../components/toast.js";
import { accountsOf, FIRST, PAUSED, windowWords } from "../parts/budgets.js";
import { bodyOf, fieldsOf } from "../parts/budget-form.js";
import { drawPaused, pauseButton, switchPause } from "../parts/pauses.js";

const ACCOUNTS_MAX = 20;

export default class Budgets extends Page {
  static title = "Budgets";
  boards = h("div.boards");
  box = h("div", h("div.card", waiting(4)));

  open() {
    const add =
      may("operate") &&
      h("button.primary", { type: "button", on: { click: () => this.edit(null) } }, icon("plus"), "New budget");
    const lead = h(
      "p.lead",
      "Money or units per calendar window. The cost of a call is held before the call and settled after it.",
    );
    fill(this, this.heading("Budgets", add), lead, this.box);
    this.when("budgets", () => this.draw());
    this.draw();
    this.every(3, () => world.isTold || world.ask("budgets"));
  }

  draw() {
    if (!world.known.has("budgets")) return;
    const budgets = [...world.budgets.values()].sort((one, other) => one.name.localeCompare(other.name));
    if (!budgets.length) {
      const text = "Jobs that need a budget wait until it is defined: by an app that declares it, here, or with";
      return fill(this.box, h("div.card", empty({ title: "No budgets yet", text, command: FIRST, icon: "budgets" })));
    }
    if (!this.boards.isConnected) fill(this.box, this.boards);
    keyed(
      this.boards,
      budgets,
      (budget) => budget.name,
      (budget) => this.board(budget),
      drawBoard,
    );
  }

  /** @param {any} budget */
  board(budget) {
    const edit = { click: () => this.edit(world.budgets.get(budget.name)) };
    const change = h(
      "button.icon-button",
      { type: "button", "aria-label": `Change ${budget.name}`, title: "Change", on: edit },
      icon("edit"),
    );
    const pause = pauseButton(budget.name, false, () => this.pause(world.budgets.get(budget.name)));
    const drop = { click: () => this.drop(budget.name) };
    const remove = h(
      "button.icon-button",
      { type: "button", "aria-label": `Forget ${budget.name}`, title: "Forget", on: drop },
      icon("trash"),
    );
    return h(
      "section.card.board",
      { "aria-label": budget.name, tabindex: "-1", data: { row: budget.name } },
      h(
        "div.board-head",
        h("span.board-name", h("h2", budget.name), note("paused", "warn")),
        may("operate") && h("span.row-actions", pause, change, remove),
      ),
      h("div.windows"),
    );
  }

  /** @param {any} budget */
  async pause({ name, paused }) {
    const words = "It grants no holds until it is resumed. Existing holds are settled as usual.";
    const done = await switchPause({ what: `budget ${name}`, isPaused: paused, words, path: at("budgets", name) });
    if (done) await world.ask("budgets");
  }

  /** @param {any} budget null: a new one */
  async edit(budget) {
    const done = await filledIn({
      title: budget ? `Change budget ${budget.name}` : "New budget",
      text: budget
        ? "The change also applies to the current window."
        : "Jobs that need it start as soon as it has room.",
      fields: fieldsOf(budget),
      action: budget ? "Review" : "Create",
      keep: budget ? "Keep it as it is" : "Not now",
      submit: (values) => this.save(budget, values),
    });
    if (done) toast(`Budget ${done} is ${budget ? "changed" : "defined"}`);
  }

  /** @param {any} budget @param {Record<string, string>} values @returns {Promise<string | null>} */
  async save(budget, values) {
    const name = budget?.name ?? values.name.trim();
    const body = bodyOf(values, budget);
    if (budget && !(await isMeant(budget, body))) return null;
    await api.put(at("budgets", name), body, { headers: budget ? { "If-Match": `"${budget.version}"` } : {} });
    await world.ask("budgets");
    return name;
  }

  /** @param {string} name */
  async drop(name) {
    const words = "Its windows and its journal are deleted as well. Jobs that need it wait until it is defined again.";
    const question = { title: `Forget budget ${name}?`, text: words, action: "Forget", keep: "Keep it", danger: true };
    if (!(await confirmed(question))) return;
    try {
      await api.delete(at("budgets", name));
      toast(`Budget ${name} is removed`);
      await world.ask("budgets");
    } catch (error) {
      toastProblem(error, "Not removed");
    }
  }
}

/** @param {any} budget @param {any} body */
function isMeant(budget, body) {
  const facts = /** @type {[string, any][]} */ ([
    ["Limit", fromTo(money(budget.limit, budget.unit), money(body.limit, body.unit))],
  ]);
  if (body.over !== budget.over) facts.push(["When used up", fromTo(budget.over, body.over)]);
  const title = `Change budget ${budget.name} for all workers?`;
  return confirmed({ title, facts, action: "Change the budget", keep: "Back" });
}

/** @param {HTMLElement} board @param {any} budget */
function drawBoard(board, budget) {
  drawPaused(board, budget);
  const known = accountsOf(budget).slice(0, ACCOUNTS_MAX);
  const untouched = { name: budget.name, window: "", limit: budget.limit, spent: "0", held: "0", left: budget.limit };
  const accounts = known.length ? known : [untouched];
  const windows = /** @type {HTMLElement} */ (board.querySelector(".windows"));
  keyed(
    windows,
    accounts,
    (account) => `${account.name} ${account.window}`,
    makeAccount,
    (row, account) => drawAccount(row, account, budget),
  );
}

/** @param {any} account */
function makeAccount(account) {
  return h(
    "div.board-account",
    { data: { account: account.name } },
    h("div.board-figure", h("strong"), h("span.muted")),
    burn(),
    h("div.notes"),
    h("dl.pairs"),
  );
}

/** @param {HTMLElement} row @param {any} account @param {any} budget */
function drawAccount(row, account, budget) {
  const say = (/** @type {string} */ amount) => money(amount, budget.unit);
  const { words, tone } = budget.paused ? { words: PAUSED, tone: "warn" } : outlook(paceOf(account, budget.unit, world.now()));
  const whose = account.name === budget.name ? "" : `${account.name}: `;
  text(/** @type {any} */ (row.querySelector("strong")), say(account.left));
  text(
    /** @type {any} */ (row.querySelector(".board-figure span")),
    `${whose}left of ${say(account.limit)} ${windowWords(budget)}`,
  );
  /** @type {any} */ (row.querySelector("lw-burn")).show(account, budget.unit);
  fill(/** @type {any} */ (row.querySelector(".notes")), h("small", { class: tone }, words));
  const pairs = /** @type {[string, any][]} */ ([
    ["Spent", say(account.spent)],
    ["Held", say(account.held)],
    ["Next window", account.end && budget.every !== "total" ? until(account.end) : "–"],
  ]);
  fill(
    /** @type {any} */ (row.querySelector(".pairs")),
    pairs.map(([name, value]) => h("div", h("dt", name), h("dd", value))),
  );
}
