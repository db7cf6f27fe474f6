/** A burn-down chart of a budget's window: the remaining amount, an even pace, and the projection. */

import { attribute, fill, svg } from "../lib/dom.js";
import { money, ms, percent } from "../lib/format.js";
import { world } from "../lib/store.js";

const WIDTH = 240;
const HEIGHT = 56;
const ENDLESS_MS = 40 * 366 * 86_400_000;

/** @typedef {Record<"name" | "window" | "limit" | "spent" | "held" | "left" | "start" | "end", string>} Account */
/**
 * `through`: the elapsed share of the window; `lasts`: the share of the window after which nothing is left at this pace.
 * @typedef {{limit: number, spent: number, held: number, left: number, through: number, lasts: number | null,
 *   unit: string, isEndless: boolean}} Pace
 */

/** @param {Account} account @param {string} unit @param {number} now ms @returns {Pace} */
export function paceOf(account, unit, now) {
  const [limit, spent, held] = [account.limit, account.spent, account.held].map(Number);
  const [start, end] = [ms(account.start), ms(account.end)];
  const isEndless = !(end - start < ENDLESS_MS);
  // Without an end there is no pace: the used amount takes the place of the elapsed time.
  const used = spent + held;
  const through = isEndless
    ? Math.min(1, used / (limit || 1))
    : Math.max(0, Math.min(1, (now - start) / (end - start)));
  const lasts = isEndless || used <= 0 || through <= 0 ? null : (through * limit) / used;
  return { limit, spent, held, left: limit - used, through, lasts, unit, isEndless };
}

/** Whether it lasts, in words. @param {Pace} pace @returns {{words: string, tone: "good" | "warn" | "bad"}} */
export function outlook(pace) {
  if (pace.left <= 0) return { words: "used up", tone: "bad" };
  if (pace.isEndless && pace.left < pace.limit)
    return {
      words: `${percent(pace.left / pace.limit)} is left`,
      tone: pace.left < pace.limit * 0.1 ? "warn" : "good",
    };
  if (pace.lasts == null) return { words: "nothing spent yet", tone: "good" };
  // At the start of a window, a single call would look like a very high pace.
  if (pace.through < 0.02 && pace.left > pace.limit * 0.5) return { words: "the window has just started", tone: "good" };
  if (pace.lasts >= 1) return { words: `lasts; about ${percent(1 - 1 / pace.lasts)} will be left`, tone: "good" };
  return { words: `at this pace used up after ${percent(pace.lasts)} of the window`, tone: "warn" };
}

class Burn extends HTMLElement {
  /** @param {Account} account @param {string} unit */
  show(account, unit) {
    const pace = paceOf(account, unit, world.now());
    const { words, tone } = outlook(pace);
    attribute(this, "data-tone", tone);
    const told = `${account.name}: ${money(pace.left, unit)} of ${money(pace.limit, unit)} left; ${words}`;
    fill(
      this,
      svg(
        "svg",
        { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": told },
        drawn(pace),
      ),
    );
  }
}

/** @param {Pace} pace */
function drawn(pace) {
  const x = (/** @type {number} */ share) => (share * WIDTH).toFixed(1);
  const y = (/** @type {number} */ left) => (2 + (HEIGHT - 4) * (1 - Math.max(0, left) / (pace.limit || 1))).toFixed(1);
  const now = { x: x(pace.through), y: y(pace.left) };
  const end =
    pace.lasts != null && pace.lasts < 1
      ? { x: x(pace.lasts), y: y(0) }
      : { x: x(1), y: y(pace.lasts == null ? pace.left : pace.limit * (1 - 1 / pace.lasts)) };
  return [
    svg("path.even", { d: `M0 ${y(pace.limit)}L${x(1)} ${y(0)}` }),
    svg("path.area", { d: `M0 ${y(pace.limit)}L${now.x} ${now.y}L${now.x} ${y(0)}L0 ${y(0)}Z` }),
    svg("path.held", { d: `M${now.x} ${now.y}L${now.x} ${y(pace.left + pace.held)}` }),
    svg("path.line", { d: `M0 ${y(pace.limit)}L${now.x} ${now.y}` }),
    svg("path.ahead", { d: `M${now.x} ${now.y}L${end.x} ${end.y}` }),
    svg("path.now", { d: `M${now.x} ${y(pace.limit)}L${now.x} ${y(0)}` }),
  ];
}

customElements.define("lw-burn", Burn);

/** @returns {any} */
export function burn() {
  const element = document.createElement("lw-burn");
  element.className = "burn";
  return element;
}
