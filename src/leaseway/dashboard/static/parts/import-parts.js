/** Parts of the import pages: states of runs, the grid of shards, the rate limit. */

import { h, keyed } from "../lib/dom.js";
import { counted, percent, rate, span, whole } from "../lib/format.js";
import { link } from "../lib/router.js";
import { world } from "../lib/store.js";
import { note } from "../components/chip.js";
import { meter } from "../components/gauge.js";
import { jobHref, stateOf } from "./jobs-table.js";
import { ratesOf } from "./limits.js";
import { queueOf, rowsOf, shardOf, shareOf } from "./import-runs.js";
import { namesIn } from "./lanes.js";

/** @type {Record<string, "good" | "warn" | "bad" | "leased" | "">} */
const TONES = { complete: "good", partial: "bad", failed: "bad", suspect: "warn", unverified: "warn", running: "leased", waiting: "warn" };

/** @param {string} state */
export function runChip(state) {
  return note(state, TONES[state] ?? "");
}

/** @param {{source: string, run: string}} run */
export function runHref({ source, run }) {
  return link(`/imports/${encodeURIComponent(source)}/${encodeURIComponent(run)}`);
}

/** Cut by state, like the bar of all jobs. @param {Record<string, number>} counts */
export function shardBar(counts) {
  const order = ["done", "failed", "cancelled", "leased", "pending"];
  const parts = order.filter((state) => counts[state]).map((state) => {
    const part = h("span", { data: { tone: state === "pending" ? "none" : state } });
    part.style.flexGrow = String(counts[state]);
    return part;
  });
  return h("div.state-bar", { role: "img", "aria-label": order.filter((state) => counts[state]).map((state) => `${counts[state]} ${state}`).join(", ") }, parts);
}

/** "12.3/s, of at most 50 per second" @param {string} source */
export function limitsOf(source) {
  const lane = [...world.lanes.values()].find((each) => each.queue === queueOf(source));
  const limits = namesIn(lane?.needs).map((name) => world.limits.get(name)).filter(Boolean);
  return limits.map(ratesOf).join(", ");
}

/** @param {import("./import-runs.js").Standing} standing */
export function leftOf({ left, state, seconds }) {
  if (state !== "running" && state !== "waiting") return `took ${span(seconds)}`;
  return left == null ? "not known yet" : `about ${span(left)}`;
}

/** One small square for each shard, in the order of the plan. @param {HTMLElement} grid @param {any[]} jobs */
export function drawGrid(grid, jobs) {
  const ordered = [...jobs].sort((one, other) => (shardOf(one) < shardOf(other) ? -1 : 1));
  keyed(grid, ordered, (job) => job.id, (job) => h("a.shard", { href: jobHref(job) }), (cell, job) => {
    const state = stateOf(job);
    const share = shareOf(job);
    cell.dataset.tone = state === "ready" ? "none" : state;
    cell.style.setProperty("--share", `${Math.round((share ?? 0.5) * 100)}%`);
    cell.classList.toggle("part", state === "leased");
    const words = `${shardOf(job)}: ${state}, ${counted(rowsOf(job), "row")}${state === "leased" && share != null ? `, ${percent(share)}` : ""}`;
    if (cell.title !== words) {
      cell.title = words;
      cell.setAttribute("aria-label", words);
    }
  });
}

/** @param {any} job */
export function progressOf(job) {
  const share = shareOf(job);
  const rows = counted(rowsOf(job), "row");
  const words = job.progress?.total ? `${whole(rowsOf(job))} of ${whole(job.progress.total)} rows` : rows;
  return h("span.shard-progress", share != null && meter(share, shardOf(job), "leased"), h("small", words));
}

/** @param {number | null} pace rows a second */
export function paceOf(pace) {
  return pace == null ? "counting …" : `${rate(pace).replace("/s", " rows/s")}`;
}
