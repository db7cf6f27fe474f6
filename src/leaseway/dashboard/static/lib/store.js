/** The state that this browser has received: pages read it and listen to its events.
 *
 * live.js delivers events with the state of totals, lanes, jobs, limits, budgets and imports. What is not part of the
 * stream (why lanes wait, workers) is polled.
 * Events for pages: totals, lanes, limits, budgets, workers (the whole list), job and import (one), way, and tick: every
 * second, for countdowns and charts.
 */

import { api, clock, doorbell, isLeft, may } from "./api.js";
import { Series, Speed, Spread } from "./series.js";

const CHART_SECONDS = 300;
const LOOK_SECONDS = 5;
const ITEMS_MAX = 200;
const COUNTED_MAX = 5_000;
const STREAMS = ["live", "stream"];
/** @type {Record<string, string>} */
const LISTS = { lane: "lanes", limit: "limits", budget: "budgets" };

/** @typedef {Record<"pending" | "ready" | "scheduled" | "leased" | "done" | "failed" | "cancelled", number>} Totals */

class World extends EventTarget {
  /** @type {Totals | null} */
  totals = null;
  /** By queue, tenant and needs. @type {Map<string, any>} */
  lanes = new Map();
  /** @type {Map<string, any>} */
  limits = new Map();
  /** @type {Map<string, any>} */
  budgets = new Map();
  /** @type {any[] | null} */
  workers = null;
  /** "live", "stream", "polling", "offline", or "" before the first event. */
  way = "";
  /** Which lists were answered at least once. @type {Set<string>} */
  known = new Set();

  done = new Speed(CHART_SECONDS);
  failed = new Speed(CHART_SECONDS);
  latency = new Spread(CHART_SECONDS);
  ready = new Series(CHART_SECONDS);
  leased = new Series(CHART_SECONDS);
  #started = false;
  /** There was a reset, and the lists were not requested since. */
  #isNew = true;
  /** @type {import("../live.js").Live | null} */
  #live = null;
  /** @type {string[]} */
  #followed = [];
  /** Lists that changed since the last frame. @type {Set<string>} */
  #changed = new Set();
  /** Finished jobs whose latency was counted already. @type {Set<string>} */
  #counted = new Set();

  /** ms since 1970, on the service's clock. */
  now() {
    return Date.now() + clock.aheadMs;
  }

  /** @param {string} kind @param {any} [detail] */
  tell(kind, detail) {
    this.dispatchEvent(new CustomEvent(kind, { detail }));
  }

  start() {
    if (this.#started) return;
    this.#started = true;
    setInterval(() => this.#tick(), 1_000);
    this.#looking();
    this.#listen();
  }

  async #listen() {
    try {
      const { Live } = await import("../live.js");
      const live = (this.#live = new Live());
      live.addEventListener("way", () => this.setWay(live.way));
      live.addEventListener("news", (/** @type {any} */ event) => this.hear(event.detail));
      live.addEventListener("expired", () => doorbell.dispatchEvent(new Event("login")));
      live.follow(this.#followed);
      live.start();
    } catch (error) {
      console.warn(error);
      this.setWay("offline"); // polling continues
    }
  }

  /** Jobs of which every change is wanted; of others, news are a sample. @param {string[]} ids */
  follow(ids) {
    this.#followed = ids;
    this.#live?.follow(ids);
  }

  /** @param {string} way */
  setWay(way) {
    if (way === this.way) return;
    this.way = way;
    this.tell("way", way);
  }

  // -- events ---------------------------------------------------------------------------------------------------------

  /** {kind: "lane", lane: {…}}, with `gone` if it is there no more. @param {Record<string, any>} news */
  hear({ kind, gone = false, ...rest }) {
    const data = rest[kind];
    if (kind === "reset") this.#isNew = true;
    else if (kind === "totals") this.setTotals(data);
    else if (kind === "job") this.setJob({ ...data, gone });
    else if (LISTS[kind]) this.#merge(LISTS[kind], data, gone);
    else this.tell(kind, data);
  }

  /** What news leave out stays as it was. @param {string} list @param {any} item @param {boolean} gone */
  #merge(list, item, gone) {
    /** @type {Map<string, any>} */
    const items = /** @type {any} */ (this)[list];
    const key = keyOf(list, item);
    if (gone) items.delete(key);
    else items.set(key, { ...items.get(key), ...item });
    this.#soon(list);
  }

  /** However many news come, a list is drawn once a frame. @param {string} list */
  #soon(list) {
    if (!this.#changed.size) requestAnimationFrame(() => this.#flush());
    this.#changed.add(list);
  }

  #flush() {
    const changed = [...this.#changed];
    this.#changed.clear();
    for (const list of changed) this.tell(list);
  }

  // -- polling --------------------------------------------------------------------------------------------------------

  /** Polls what is not part of the stream, while the page is visible. */
  async #looking() {
    for (;;) {
      if (!document.hidden) await this.look();
      await new Promise((resume) => setTimeout(resume, LOOK_SECONDS * 1_000));
    }
  }

  async look() {
    const asked = this.#questions();
    await Promise.all(asked.map((what) => this.ask(what)));
    if (asked.includes("budgets")) this.#isNew = false;
  }

  /** Why lanes wait, and workers, are never part of the stream. Limits and budgets are for operators. */
  #questions() {
    if (!may("operate")) return ["lanes"];
    return this.isTold ? ["lanes", "workers"] : ["lanes", "workers", "limits", "budgets"];
  }

  /** Whether the stream delivers limits and budgets. After a reset, removed ones are not part of it. */
  get isTold() {
    return this.way !== "" && this.way !== "offline" && !this.#isNew;
  }

  /** @param {string} what lanes, limits, budgets or workers */
  async ask(what) {
    try {
      const answer = await api.get(`/${what}`, { limit: ITEMS_MAX });
      this.known.add(what);
      if (answer.total) this.setTotals(answer.total);
      this.#put(what, answer.items);
      this.tell(what);
    } catch (error) {
      if (!isLeft(error)) this.tell("trouble", { what, error });
    }
  }

  /** @param {string} what @param {any[]} items */
  #put(what, items) {
    if (what === "workers") this.workers = items;
    else /** @type {any} */ (this)[what] = new Map(items.map((item) => [keyOf(what, item), item]));
  }

  // -- figures --------------------------------------------------------------------------------------------------------

  /** @param {any} totals */
  setTotals(totals) {
    this.totals = { ...totals, pending: totals.ready + totals.scheduled };
    const now = this.now();
    this.done.saw(now, totals.done);
    this.failed.saw(now, totals.failed);
    this.tell("totals", this.totals);
  }

  /** A job as it is now; one that is done is measured once. @param {any} job */
  setJob(job) {
    if (job.state === "done" && job.finished_at && !this.#counted.has(job.id)) this.#measure(job);
    this.tell("job", job);
  }

  /** The time from due to done. @param {any} job */
  #measure(job) {
    if (this.#counted.size >= COUNTED_MAX) this.#counted.clear();
    this.#counted.add(job.id);
    const since = Math.max(Date.parse(job.created_at), Date.parse(job.run_at) || 0);
    const at = Date.parse(job.finished_at);
    if (at >= since) this.latency.saw(at, (at - since) / 1_000);
  }

  /** @param {number} now @param {Totals} totals */
  #sample(now, totals) {
    this.ready.add(now, totals.ready);
    this.leased.add(now, totals.leased);
    // On a stream, silence means that nothing changed; between two polls it means nothing.
    if (!STREAMS.includes(this.way)) return;
    this.done.saw(now, totals.done);
    this.failed.saw(now, totals.failed);
  }

  #tick() {
    const now = this.now();
    if (this.totals) this.#sample(now, this.totals);
    this.latency.draw(now);
    this.tell("tick", now);
  }
}

/** @param {any} lane */
export function laneKey(lane) {
  return JSON.stringify([lane.queue, lane.tenant, lane.needs ?? null]);
}

/** @param {string} list @param {any} item @returns {string} */
function keyOf(list, item) {
  return list === "lanes" ? laneKey(item) : item.name;
}

export const world = new World();
