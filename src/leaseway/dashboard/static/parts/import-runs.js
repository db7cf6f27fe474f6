/** Runs of imports, derived from their jobs: each shard is a job whose payload names its run. */

import { api } from "../lib/api.js";
import { ms } from "../lib/format.js";
import { Speed } from "../lib/series.js";
import { world } from "../lib/store.js";

const QUEUE = "imports:";
const PAGE = 200;
/** How many jobs of a source are read, newest first. */
const READ_MAX = 1_000;
const SOURCES_MAX = 20;
const FINAL = ["done", "failed", "cancelled"];
const RATE_SECONDS = 300;

/** @typedef {{source: string, run: string, jobs: any[], isWhole: boolean}} Run */
/** @typedef {{state: string, shards: number, ended: number, counts: Record<string, number>, rows: number, share: number,
 *   began: string, seconds: number, left: number | null}} Standing */

/** @param {string} source */
export function queueOf(source) {
  return QUEUE + source;
}

/** Sources with known jobs. */
export function sourcesIn() {
  const queues = [...world.lanes.values()].map((lane) => lane.queue).filter((queue) => queue.startsWith(QUEUE));
  return [...new Set(queues)].map((queue) => queue.slice(QUEUE.length)).sort().slice(0, SOURCES_MAX);
}

/** @param {string} source @param {AbortSignal} signal @param {string} [only] one run @returns {Promise<Run[]>} the newest first */
export async function readRuns(source, signal, only) {
  /** @type {Map<string, Run>} */
  const runs = new Map();
  let [cursor, read] = [/** @type {string | null} */ (null), 0];
  do {
    const answer = await api.get("/jobs", { queue: queueOf(source), limit: PAGE, cursor }, { signal });
    for (const job of answer.items) put(runs, source, job, only);
    [cursor, read] = [answer.next, read + answer.items.length];
  } while (cursor && read < READ_MAX);
  const found = [...runs.values()];
  // The oldest run may have more jobs than were read.
  if (cursor && found.length) found[found.length - 1].isWhole = false;
  return found;
}

/** @param {Map<string, Run>} runs @param {string} source @param {any} job @param {string} [only] */
function put(runs, source, job, only) {
  const run = String(job.payload?.run ?? "");
  if (!run || (only && run !== only)) return;
  const found = runs.get(run) ?? { source, run, jobs: [], isWhole: true };
  runs.set(run, found);
  found.jobs.push(job);
}

/** A shard's name, without the source before it and the hash behind; the job that asks for missing rows has none. @param {any} job */
export function shardOf(job) {
  const key = String(job.payload?.shard ?? "closing");
  return key.split("/").slice(1, -1).join("/") || key;
}

/** @param {any} job */
export function rowsOf(job) {
  return Number(job.result?.rows ?? job.progress?.done ?? 0) || 0;
}

/** @param {any} job @returns {number | null} 0 to 1; null: it cannot be known */
export function shareOf(job) {
  if (FINAL.includes(job.state)) return 1;
  const { done, total } = job.progress ?? {};
  return total > 0 ? Math.min(1, done / total) : job.state === "leased" ? null : 0;
}

/** @param {Run} run @returns {Standing} */
export function standingOf({ jobs }) {
  /** @type {Record<string, number>} */
  const counts = { pending: 0, leased: 0, done: 0, failed: 0, cancelled: 0 };
  for (const job of jobs) counts[job.state] += 1;
  const ended = counts.done + counts.failed + counts.cancelled;
  const share = jobs.reduce((sum, job) => sum + (shareOf(job) ?? 0), 0) / Math.max(1, jobs.length);
  const began = jobs.reduce((first, job) => (job.created_at < first ? job.created_at : first), jobs[0].created_at);
  const seconds = ((ended === jobs.length ? endOf(jobs) : world.now()) - ms(began)) / 1_000;
  const rows = jobs.reduce((sum, job) => sum + rowsOf(job), 0);
  return { state: stateOf(counts, ended === jobs.length), shards: jobs.length, ended, counts, rows, share, began, seconds, left: leftOf(share, seconds) };
}

/** @param {any[]} jobs */
function endOf(jobs) {
  return Math.max(...jobs.map((job) => ms(job.finished_at) || 0));
}

/** @param {Record<string, number>} counts @param {boolean} isOver */
function stateOf(counts, isOver) {
  if (!isOver) return counts.leased ? "running" : "waiting";
  return counts.failed || counts.cancelled ? "partial" : "complete";
}

/** At the pace so far. @param {number} share @param {number} seconds */
function leftOf(share, seconds) {
  return share > 0.02 && share < 1 ? (seconds * (1 - share)) / share : null;
}

/** Rows per second, by run. */
export class Paces {
  /** @type {Map<string, Speed>} */
  #speeds = new Map();

  /** @param {Run} run @param {Standing} standing @returns {number | null} rows a second */
  of(run, standing) {
    if (!["running", "waiting"].includes(standing.state)) return standing.seconds > 0 ? standing.rows / standing.seconds : null;
    const key = JSON.stringify([run.source, run.run]);
    const speed = this.#speeds.get(key) ?? new Speed(RATE_SECONDS, 20);
    this.#speeds.set(key, speed);
    speed.saw(world.now(), standing.rows);
    return speed.last;
  }
}
