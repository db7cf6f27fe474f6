/** Coordinates of rows ─► map: new rows with every poll, and from time to time all rows again. */

import { api, at } from "../lib/api.js";
import { worldMap } from "../components/map.js";

/** Rows per request, and requests per poll. */
const ROWS = 10_000;
const ANSWERS_MAX = 40;
/** Rewritten rows keep their position, so they appear only if all rows are read again. */
const AGAIN_MS = 15_000;

export class Points {
  /** @type {string | null} */
  #after = null;
  #hasBegun = false;
  #isBusy = false;
  /** Whether all initial rows were read, so that further rows are new. */
  #isCaughtUp = false;
  #rewritten = -1;
  #againAt = 0;
  #state = "";
  /** null: not known yet. @type {boolean | null} */
  hasPositions = null;

  /** @param {any} map @param {string} source @param {string} run @param {AbortSignal} signal
   * @param {() => void} told there is something new on the map */
  constructor(map, source, run, signal, told) {
    this.told = told;
    this.map = map;
    this.path = `/imports${at(source, "runs", run, "points")}`;
    this.signal = signal;
  }

  /** @param {any} progress of the run */
  async look(progress) {
    if (this.#isBusy || this.hasPositions === false || document.hidden) return;
    this.#isBusy = true;
    try {
      await this.#turn(progress);
    } finally {
      this.#isBusy = false;
    }
  }

  /** @param {any} progress */
  async #turn({ state, updated }) {
    const isRunning = state === "running";
    const hasEnded = this.#state === "running" && !isRunning;
    if (!this.#hasBegun || this.#after) await this.#read();
    if (this.#rewritten < 0) this.#rewritten = updated;
    const isDue = isRunning && updated > this.#rewritten && performance.now() - this.#againAt > AGAIN_MS;
    if (isDue || hasEnded || (isRunning && !this.#after && this.#hasBegun)) await this.#again(updated);
    this.#state = state;
  }

  /** What is there now, counted in silence. @param {number} updated */
  async #again(updated) {
    const { map } = this;
    this.map = worldMap();
    [this.#after, this.#isCaughtUp] = [null, false];
    try {
      await this.#read();
      map.take(this.map);
    } finally {
      this.map = map;
      [this.#rewritten, this.#againAt] = [updated, performance.now()];
    }
  }

  async #read() {
    for (let asked = 0; asked < ANSWERS_MAX; asked += 1) {
      const answer = await api.get(this.path, { after: this.#after, limit: ROWS }, { signal: this.signal });
      this.hasPositions = answer.has_positions;
      this.map.add(answer.items, answer.others, answer.degrees, this.#isCaughtUp);
      [this.#after, this.#hasBegun] = [answer.next, true];
      this.told();
      if (!answer.more) {
        this.#isCaughtUp = true;
        return;
      }
    }
  }
}
