/** Pools of workers that are scaled: how many should run, what binds, and the last decisions. */

import { api } from "../lib/api.js";
import { fill, h } from "../lib/dom.js";
import { counted, whole } from "../lib/format.js";
import { card } from "../components/card.js";
import { since } from "../components/times.js";

const DECISIONS_SHOWN = 8;
/** Causes that more workers would not help. */
const BOUNDS = ["limit", "budget", "tenant", "lane", "no_benefit"];

/**
 * @typedef {{name: string, desired_workers: number, live_workers: number | null, workers_min: number,
 *   workers_max: number, seen_at: string}} Fleet
 * @typedef {{at: string, desired_workers: number, wanted_workers: number, cause: string, reason: string}} Decision
 * @typedef {{pool: string, queues: string[], slots_per_worker: number, desired_workers: number, cause: string,
 *   reason: string, ready: number, running: number, decided_at: string, fleets: Fleet[], decisions: Decision[]}} Pool
 */

export async function readPools() {
  /** @type {{items: Pool[]}} */
  const answer = await api.get("/scale", { limit: 50 });
  return answer.items;
}

/** One card per pool. @param {HTMLElement} box @param {Pool[]} pools */
export function drawPools(box, pools) {
  fill(box, pools.map(poolCard));
}

/** @param {Pool} pool */
function poolCard(pool) {
  const chip = h("span.chip", { data: { tone: toneOf(pool.cause) } }, pool.cause);
  const live = pool.fleets.every((fleet) => fleet.live_workers == null)
    ? ""
    : `, ${whole(pool.fleets.reduce((sum, fleet) => sum + (fleet.live_workers ?? 0), 0))} live`;
  const figures = `${counted(pool.desired_workers, "worker")} desired${live}; ${whole(pool.ready)} jobs ready, ${whole(pool.running)} running`;
  return card(
    titleOf(pool),
    { class: "pool", more: chip },
    h("p", h("strong", figures)),
    h("p.reason", pool.reason),
    pool.fleets.length > 1 && fleetList(pool.fleets),
    decisionTable(pool),
  );
}

/** @param {Pool} pool */
function titleOf(pool) {
  return pool.pool.startsWith("service:") ? `Pool ${pool.pool.slice("service:".length)}` : `Fleet of ${pool.queues.join(", ")}`;
}

/** @param {Fleet[]} fleets */
function fleetList(fleets) {
  const line = (/** @type {Fleet} */ fleet) => [
    h("span.mono", fleet.name),
    ` ${counted(fleet.desired_workers, "worker")} of ${whole(fleet.workers_min)} to ${whole(fleet.workers_max)}, seen `,
    since(fleet.seen_at),
  ];
  return h("ul.fleets", fleets.map((fleet) => h("li", line(fleet))));
}

/** @param {Pool} pool */
function decisionTable(pool) {
  const heads = ["When", "Workers", "Cause", "Reason"].map((label) => h("th", { scope: "col" }, label));
  const rows = pool.decisions.slice(0, DECISIONS_SHOWN).map((decision) =>
    h(
      "tr",
      h("td", since(decision.at)),
      h("td.num", whole(decision.desired_workers)),
      h("td", h("span.chip", { data: { tone: toneOf(decision.cause) } }, decision.cause)),
      h("td.text", decision.reason),
    ),
  );
  const label = { "aria-label": `Last decisions of ${titleOf(pool)}` };
  return h("div.table-box", h("table.table", label, h("thead", h("tr", heads)), h("tbody", rows)));
}

/** @param {string} cause */
function toneOf(cause) {
  if (BOUNDS.includes(cause)) return "warn";
  return cause === "stale" ? "bad" : cause === "demand" ? "leased" : "";
}
