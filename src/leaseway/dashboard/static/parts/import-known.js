/** The imports that the service knows, with the runs that their sinks contain. */

import { api, at, isLeft, may } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { ms } from "../lib/format.js";
import { world } from "../lib/store.js";
import { note } from "../components/chip.js";
import { icon } from "../components/icons.js";
import { table } from "../components/table.js";
import { since } from "../components/times.js";
import { toastProblem } from "../components/toast.js";
import { runChip, runHref } from "./import-parts.js";
import { planRun, startRun } from "./import-start.js";

const IMPORTS_MAX = 50;
const RUNS = 5;
const RUNS_MAX = 40;

/** @typedef {import("./import-runs.js").Standing} Standing */
/** @typedef {{source: string, run: string, standing: Standing, pace: number | null, isWhole: boolean}} KnownRun */

export class KnownImports {
  /** @type {any[]} */
  items = [];
  /** Runs that are over do not change. @type {Map<string, any>} */
  #over = new Map();
  table = table({
    label: "Imports", keyOf: (known) => known.source,
    columns: [
      { label: "Import", class: "name", cell: (known) => [known.last_run ? h("a", { href: runHref(known.last_run) }, known.source) : known.source, " ", h("small", known.spec)] },
      { label: "Table", cell: (known) => h("span.mono", known.table) },
      { label: "Last run", class: "tight state", cell: (known) => (known.last_run ? runChip(known.last_run.state) : note(known.is_reachable ? "never run" : "no response", known.is_reachable ? "" : "bad")) },
      { label: "Started", class: "num spare", cell: (known) => (known.last_run ? since(known.last_run.started_at) : "–") },
      { label: "", quiet: true, class: "num tight full", cell: (known) => may("imports:write") && starting(known) },
    ],
  });

  /** @param {AbortSignal} signal @returns {Promise<KnownRun[]>} */
  async look(signal) {
    if (!may("imports:read")) return [];
    this.items = (await api.get("/imports", { limit: IMPORTS_MAX }, { signal })).items;
    this.table.show(this.items);
    const reachable = this.items.filter((known) => known.is_reachable);
    const lists = await Promise.all(reachable.map((known) => api.get(`/imports${at(known.source, "runs")}`, { limit: RUNS }, { signal })));
    const newest = lists.flatMap((list) => list.items).sort((one, other) => (one.started_at < other.started_at ? 1 : -1));
    return Promise.all(newest.slice(0, RUNS_MAX).map((run) => this.#read(run, signal)));
  }

  /** @param {any} run @param {AbortSignal} signal @returns {Promise<KnownRun>} */
  async #read(run, signal) {
    const key = JSON.stringify([run.source, run.run, run.state, run.finished_at]);
    const progress = this.#over.get(key) ?? (await api.get(`/imports${at(run.source, "runs", run.run)}`, {}, { signal }).catch((error) => soften(error)));
    if (progress && progress.state !== "running") this.#over.set(key, progress);
    return rowOf(progress ?? run);
  }
}

/** One that cannot be read is shown with what is known of it. @param {unknown} error */
function soften(error) {
  if (isLeft(error)) throw error;
  return null;
}

/** @param {any} progress @returns {KnownRun} */
export function rowOf(progress) {
  const { shards = {}, state, started_at: began, finished_at: end } = progress;
  const counts = { done: (shards.done ?? 0) + (shards.split ?? 0), failed: shards.parked ?? 0, cancelled: 0, leased: shards.running ?? 0, pending: shards.waiting ?? 0 };
  const hasBegun = counts.done + counts.failed + counts.leased > 0;
  const standing = {
    state: state === "running" && !hasBegun ? "waiting" : state, counts, began, shards: progress.shards_total ?? 0, ended: progress.shards_ended ?? 0, rows: progress.rows ?? 0, share: progress.share ?? 0,
    seconds: ((end ? ms(end) : world.now()) - ms(began)) / 1_000, left: progress.seconds_left ?? null,
  };
  return { source: progress.source, run: progress.run, standing, pace: state === "running" ? (progress.rows_per_second ?? null) : standing.rows / Math.max(standing.seconds, 0.001), isWhole: true };
}

/** @param {any} known */
function starting(known) {
  const start = async () => {
    try {
      await startRun(known);
    } catch (error) {
      toastProblem(error);
    }
  };
  const plan = async () => {
    try {
      if (await planRun(known)) await startRun(known);
    } catch (error) {
      toastProblem(error);
    }
  };
  return [
    h("button.quiet", { type: "button", "aria-label": `Plan ${known.source}`, on: { click: plan } }, "Plan"),
    " ",
    h("button", { type: "button", on: { click: start } }, icon("play"), "Start"),
  ];
}
