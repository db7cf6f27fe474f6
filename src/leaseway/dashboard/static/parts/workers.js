/** Workers are the owners of leases; their jobs show what they work on. */

import { api } from "../lib/api.js";
import { fill, h, keyed, text } from "../lib/dom.js";
import { counted, whole } from "../lib/format.js";
import { empty, waiting } from "../components/empty.js";
import { since } from "../components/times.js";
import { world } from "../lib/store.js";

export const FIRST = "leaseway work mymodule:app";
const ROWS_MAX = 6;
const JOBS_MAX = 200;
const KINDS_MAX = 4;
const WORKERS_MAX = 1_000;
/** How long a worker without leases is still shown: otherwise rows would appear and disappear with every job. */
const LATELY_MS = 60_000;

/** @typedef {{name: string, leased: number, expired: number, seen_at: string, until: string | null}} Worker */

class Fleet {
  /** @type {Map<string, {worker: Worker, at: number}>} */
  #seen = new Map();
  /** By worker: the kinds that it was seen with, and when. @type {Map<string, Map<string, number>>} */
  #kinds = new Map();

  constructor() {
    world.addEventListener("job", (event) => this.#saw(/** @type {CustomEvent} */ (event).detail));
  }

  /** @param {any} job */
  #saw({ lease_owner: owner, kind }) {
    if (!owner) return;
    if (this.#kinds.size >= WORKERS_MAX) this.#kinds.clear();
    const kinds = this.#kinds.get(owner) ?? new Map();
    this.#kinds.set(owner, kinds.set(kind, world.now()));
  }

  /** Those with leases and those that had some a moment ago, by name. @returns {Worker[]} */
  workers() {
    const now = world.now();
    for (const worker of world.workers ?? []) this.#seen.set(worker.name, { worker, at: now });
    const busy = new Set((world.workers ?? []).map((worker) => worker.name));
    for (const [name, { at }] of this.#seen) if (now - at > LATELY_MS) this.#forget(name);
    const shown = [...this.#seen.values()].map(({ worker }) =>
      busy.has(worker.name) ? worker : { ...worker, leased: 0, expired: 0, until: null },
    );
    return shown.sort((one, other) => other.expired - one.expired || one.name.localeCompare(other.name));
  }

  /** @param {string} name */
  #forget(name) {
    this.#seen.delete(name);
    this.#kinds.delete(name);
  }

  /** News are a sample: those that work now are asked for as well. @param {AbortSignal} signal */
  async look(signal) {
    const { items } = await api.get("/jobs", { state: "leased", limit: JOBS_MAX }, { signal });
    for (const job of items) this.#saw(job);
  }

  /** The kinds of its jobs in the last minute: what is quick would not be seen otherwise. @param {string} name */
  kinds(name) {
    const since = world.now() - LATELY_MS;
    const kinds = [...(this.#kinds.get(name) ?? [])].filter(([, at]) => at >= since).map(([kind]) => kind);
    return kinds.sort().slice(0, KINDS_MAX).join(", ") + (kinds.length > KINDS_MAX ? " …" : "");
  }
}

export const fleet = new Fleet();

/** The short list of the overview. @param {HTMLElement} list */
export function workerList(list) {
  if (world.workers == null) return list.childElementCount || fill(list, h("li", waiting(3)));
  const workers = fleet.workers();
  if (!workers.length) {
    const words = world.totals?.ready
      ? "Jobs are ready, but no worker is running. Start one:"
      : "A worker is shown while it holds a lease. Start one:";
    return fill(list, h("li", empty({ title: "No workers", text: words, command: FIRST, icon: "workers" })));
  }
  if (!list.querySelector("[data-worker]")) fill(list);
  keyed(list, workers.slice(0, ROWS_MAX), (worker) => worker.name, makeRow, updateRow);
}

/** @param {Worker} worker */
function makeRow(worker) {
  const name = h("span.name.mono", { title: worker.name }, worker.name);
  const about = h("div.row.about", h("span.kinds"), h("span.seen", { title: "Last seen" }));
  return h("li", { data: { worker: worker.name } }, h("div.grow", h("div.row", name, h("span.leases")), about));
}

/** @param {HTMLElement} row @param {Worker} worker */
function updateRow(row, worker) {
  const part = (/** @type {string} */ name) => /** @type {HTMLElement} */ (row.querySelector(name));
  text(part(".leases"), counted(worker.leased, "lease"));
  part(".leases").classList.toggle("muted", !worker.leased);
  text(part(".kinds"), worker.expired ? `${whole(worker.expired)} expired` : fleet.kinds(worker.name));
  part(".kinds").classList.toggle("bad", worker.expired > 0);
  if (row.dataset.at !== worker.seen_at) fill(part(".seen"), since(worker.seen_at));
  row.dataset.at = worker.seen_at;
}
