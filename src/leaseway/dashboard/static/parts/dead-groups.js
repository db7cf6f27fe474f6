/** Failed jobs, grouped by error and kind. */

import { api, at } from "../lib/api.js";
import { link } from "../lib/router.js";

const PAGE = 200;
/** How many jobs are grouped; of older ones only the number is known. */
export const READ_MAX = 1_000;
const SAMPLES_MAX = 30;

/** @typedef {{key: string, code: string, kind: string, jobs: any[], queues: Set<string>, tenants: Set<string>, newest: any, oldest: any}} Group */

/** The newest failed jobs, as many as are put together. @param {AbortSignal} signal @returns {Promise<{jobs: any[], isAll: boolean}>} */
export async function readDead(signal) {
  /** @type {any[]} */
  const jobs = [];
  let cursor = null;
  do {
    const answer = await api.get("/jobs", { state: "failed", limit: PAGE, cursor }, { signal });
    jobs.push(...answer.items.map(slim));
    cursor = answer.next;
  } while (cursor && jobs.length < READ_MAX);
  return { jobs, isAll: !cursor };
}

/** Arguments and results may be long, and are not needed here. @param {any} job */
function slim({ id, kind, queue, tenant, finished_at, last_error_code }) {
  return { id, kind, queue, tenant, finished_at, last_error_code };
}

/** The largest first. @param {any[]} jobs @returns {Group[]} */
export function groupsOf(jobs) {
  /** @type {Map<string, Group>} */
  const groups = new Map();
  for (const job of jobs) {
    const key = JSON.stringify([job.last_error_code, job.kind]);
    const group = groups.get(key) ?? { key, code: job.last_error_code ?? "", kind: job.kind, jobs: [], queues: new Set(), tenants: new Set(), newest: job, oldest: job };
    groups.set(key, group);
    add(group, job);
  }
  return [...groups.values()].sort((one, other) => other.jobs.length - one.jobs.length || (one.key < other.key ? -1 : 1));
}

/** @param {Group} group @param {any} job */
function add(group, job) {
  group.jobs.push(job);
  group.queues.add(job.queue);
  group.tenants.add(job.tenant);
  if (job.finished_at > group.newest.finished_at) group.newest = job;
  if (job.finished_at < group.oldest.finished_at) group.oldest = job;
}

/** @param {Group} group @returns {import("./job-changes.js").Filter} */
export function filterOf({ code, kind }) {
  return { states: ["failed"], kind, ...(code && { error_code: code }) };
}

/** @param {Group} group */
export function jobsHref({ code, kind }) {
  return link("/jobs", { state: "failed", kind, error_code: code });
}

/** The last error of the newest job of a group; requested once per job. */
export class Samples {
  /** By job. @type {Map<string, string>} */
  #said = new Map();

  /** @param {Group} group */
  of(group) {
    return this.#said.get(group.newest.id) ?? "";
  }

  /** @param {Group[]} groups @param {AbortSignal} signal */
  async ask(groups, signal) {
    const unknown = groups.map((group) => group.newest.id).filter((id) => !this.#said.has(id)).slice(0, SAMPLES_MAX);
    const known = new Set(groups.map((group) => group.newest.id));
    for (const id of this.#said.keys()) if (!known.has(id)) this.#said.delete(id);
    await Promise.allSettled(unknown.map(async (id) => {
      const job = await api.get(at("jobs", id), {}, { signal });
      this.#said.set(id, job.errors.at(-1)?.message ?? "");
    }));
    return unknown.length > 0;
  }
}
