/** Limits as gauges: how much of each window is in use. */

import { fill, h, keyed, text } from "../lib/dom.js";
import { perWindow, span, whole, windowName } from "../lib/format.js";
import { empty, waiting } from "../components/empty.js";
import { gauge } from "../components/gauge.js";
import { instantIn, until } from "../components/times.js";
import { world } from "../lib/store.js";

export const FIRST = "leaseway limits set maps 100/minute";
const ROWS_MAX = 5;

/** @typedef {{label: string, share: number | null, words: string}} Use one thing that can run out */

/** @param {any} limit @returns {Use[]} */
export function usesOf(limit) {
  return (limit.gauges ?? []).map((/** @type {any} */ each) =>
    each.what === "concurrency" ? concurrencyUse(each) : windowUse(limit, each),
  );
}

/** @param {any} gauge @returns {Use} */
function concurrencyUse({ of, used }) {
  return {
    label: `${whole(of)} concurrent`,
    share: of ? used / of : null,
    words: `${whole(used)} of ${whole(of)} in flight`,
  };
}

/** @param {any} limit @param {any} gauge @returns {Use} */
function windowUse(limit, { window_seconds, of, used, room, full_seconds }) {
  const stated = (limit.rates ?? []).find((/** @type {any} */ rate) => rate.window_seconds === window_seconds);
  const label = stated ? perWindow(stated.count, window_seconds) : `per ${windowName(window_seconds)}`;
  if (full_seconds == null) return { label, share: null, words: "not used yet" };
  const window = (limit.windows ?? []).find((/** @type {any} */ each) => each.window_seconds === window_seconds);
  const every = window ? `, one every ${span(window.permit_seconds)}` : "";
  return { label, share: of ? used / of : null, words: `${whole(room)} of ${whole(of)} free${every}` };
}

/** The one that runs out first. @param {any} limit @returns {Use} */
export function tightest(limit) {
  const uses = usesOf(limit);
  if (!uses.length) return { label: ratesOf(limit), share: null, words: "not used yet" };
  return uses.reduce((most, use) => ((use.share ?? -1) > (most.share ?? -1) ? use : most));
}

/** @param {any} limit */
export function ratesOf(limit) {
  const rates = (limit.rates ?? []).map((/** @type {any} */ rate) => perWindow(rate.count, rate.window_seconds));
  if (limit.concurrency) rates.push(`${whole(limit.concurrency)} concurrent`);
  return rates.join(", ");
}

/** What keeps it from granting, if anything does. @param {any} limit */
export function troubleOf(limit) {
  if (limit.paused) return h("span.warn", "paused: no permits are granted until it is resumed");
  if (limit.closed_until) return h("span.bad", "closed by the provider until ", until(limit.closed_until));
  if (limit.breaker === "open")
    return h("span.bad", "circuit breaker open until ", until(limit.breaker_until), ", then one call probes the provider");
  if (limit.breaker === "half-open") return h("span.warn", "circuit breaker half-open: one call probes the provider");
  if (limit.percent != null && limit.percent < 100)
    return h("span.warn", `slowed to ${limit.percent} % after rejected calls`);
  if (limit.next_free_seconds > 0)
    return h("span.warn", "next permit ", until(instantIn(limit.next_free_seconds), { over: "any moment" }));
  return null;
}

/** The caps of a tenant are kept like a limit; people know and change them as the tenant's. @param {any} limit */
export function isOfTenant(limit) {
  return limit.name.startsWith("tenant:");
}

/** A provider that refuses is another matter than a limit in full use. @param {any} limit */
export function alarmOf(limit) {
  return limit.closed_until || limit.breaker === "open" ? "bad" : null;
}

/** The short list of the overview. @param {HTMLElement} list */
export function limitList(list) {
  if (!world.known.has("limits")) return list.childElementCount || fill(list, h("li", waiting(3)));
  const limits = [...world.limits.values()].sort(
    (one, other) => (tightest(other).share ?? 0) - (tightest(one).share ?? 0),
  );
  if (!limits.length) {
    return fill(
      list,
      h(
        "li",
        empty({
          title: "No limits",
          text: "Set a provider’s rate; no worker exceeds it:",
          command: FIRST,
          icon: "limits",
        }),
      ),
    );
  }
  if (!list.querySelector("[data-limit]")) fill(list);
  keyed(list, limits.slice(0, ROWS_MAX), (limit) => limit.name, makeRow, updateRow);
}

/** @param {any} limit */
function makeRow(limit) {
  const name = h("a.name", { href: "#/limits" }, limit.name);
  return h("li", { data: { limit: limit.name } }, gauge(), h("div.grow", name, h("span.about"), h("span.about")));
}

/** @param {HTMLElement} row @param {any} limit */
function updateRow(row, limit) {
  const use = tightest(limit);
  const [rates, state] = row.querySelectorAll(".about");
  /** @type {any} */ (row.querySelector("lw-gauge")).show({
    share: use.share,
    label: `${limit.name}, ${use.label}`,
    words: use.words,
    tone: alarmOf(limit),
  });
  text(rates, ratesOf(limit));
  fill(state, troubleOf(limit) ?? use.words);
}
