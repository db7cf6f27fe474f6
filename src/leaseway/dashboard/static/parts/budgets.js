/** Budgets as burn-down charts of the current window. */

import { fill, h, keyed, text } from "../lib/dom.js";
import { money, ms } from "../lib/format.js";
import { burn, outlook, paceOf } from "../components/burn.js";
import { empty, waiting } from "../components/empty.js";
import { world } from "../lib/store.js";

export const FIRST = "leaseway budgets set maps-spend --usd 25 --every day";
export const PAUSED = "paused: no holds are granted until it is resumed";
const ROWS_MAX = 4;
/** @type {Record<string, string>} */
const WINDOWS = { hour: "this hour", day: "today", week: "this week", month: "this month", total: "in total" };

/** The window that is under way; without one, nothing was spent yet. @param {any} budget */
export function currentOf(budget) {
  const now = world.now();
  const windows = budget.windows ?? [];
  return windows.find((/** @type {any} */ each) => isUnderWay(each, now)) ?? null;
}

/** All accounts under way: a budget may be kept once per tenant. @param {any} budget @returns {any[]} */
export function accountsOf(budget) {
  const now = world.now();
  return (budget.windows ?? []).filter((/** @type {any} */ each) => isUnderWay(each, now));
}

/** What never ends has no end that a calendar could name. @param {any} account @param {number} now ms */
function isUnderWay(account, now) {
  return !(now < ms(account.start)) && !(now >= ms(account.end));
}

/** @param {any} budget */
export function windowWords(budget) {
  return WINDOWS[budget.every] ?? `this ${budget.every}`;
}

/** The short list of the overview. @param {HTMLElement} list */
export function budgetList(list) {
  if (!world.known.has("budgets")) return list.childElementCount || fill(list, h("li", waiting(3)));
  const budgets = [...world.budgets.values()];
  if (!budgets.length) {
    return fill(
      list,
      h(
        "li",
        empty({
          title: "No budgets",
          text: "Set how much may be spent; jobs never spend more:",
          command: FIRST,
          icon: "budgets",
        }),
      ),
    );
  }
  if (!list.querySelector("[data-budget]")) fill(list);
  keyed(list, budgets.sort(byRoom).slice(0, ROWS_MAX), (budget) => budget.name, makeRow, updateRow);
}

/** Those with the least left come first. @param {any} one @param {any} other */
function byRoom(one, other) {
  return roomOf(one) - roomOf(other) || one.name.localeCompare(other.name);
}

/** @param {any} budget */
function roomOf(budget) {
  const account = currentOf(budget);
  return account ? Number(account.left) / (Number(account.limit) || 1) : 1;
}

/** @param {any} budget */
function makeRow(budget) {
  const name = h("a.name", { href: "#/budgets" }, budget.name);
  return h(
    "li",
    { data: { budget: budget.name } },
    h("div.grow", h("div.row", name, h("span.left")), burn(), h("span.about")),
  );
}

/** @param {HTMLElement} row @param {any} budget */
function updateRow(row, budget) {
  const account = currentOf(budget);
  const [left, about] = [row.querySelector(".left"), row.querySelector(".about")];
  const drawing = /** @type {any} */ (row.querySelector("lw-burn"));
  drawing.hidden = !account;
  text(/** @type {any} */ (left), `${money(account?.left ?? budget.limit, budget.unit)} left`);
  if (!account)
    return text(
      /** @type {any} */ (about),
      `of ${money(budget.limit, budget.unit)} ${windowWords(budget)}; nothing spent yet`,
    );
  drawing.show(account, budget.unit);
  if (budget.paused) return fill(/** @type {any} */ (about), h("span.warn", PAUSED));
  const { words, tone } = outlook(paceOf(account, budget.unit, world.now()));
  fill(
    /** @type {any} */ (about),
    `of ${money(account.limit, budget.unit)} ${windowWords(budget)}; `,
    h("span", { class: tone === "good" ? "" : tone }, words),
  );
}
