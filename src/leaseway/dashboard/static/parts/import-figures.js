/** The figures of a run: rows, pace, requests with limit and budget, shards, time, quarantine. */

import { fill, h, text } from "../lib/dom.js";
import { money, percent, perWindow, rate, short, span, whole } from "../lib/format.js";
import { world } from "../lib/store.js";
import { showFigure } from "../components/figure.js";
import { TONES } from "./import-shards.js";

const TILES = ["Rows", "Pace", "Requests", "Shards", "Time", "Quarantine"];

export class Figures {
  /** @type {any} */
  progress = null;
  values = TILES.map(() => ({ value: h("span.tile-value"), note: h("span.tile-note") }));
  bar = h("div.state-bar.run-bar", { role: "img" });
  element = h("div", this.bar, h("div.tiles", TILES.map((name, at) => h("div.tile", h("span.tile-name", name), this.values[at].value, this.values[at].note))));

  /** @param {any} progress */
  show(progress) {
    this.progress = progress;
    this.drawTiles(progress);
    this.drawBar(progress);
  }

  get isRunning() {
    return this.progress.state === "running";
  }

  /** @param {any} progress */
  drawTiles(progress) {
    const { inserted, updated, unchanged } = progress;
    const kinds = [[inserted, "new"], [updated, "changed"], [unchanged, "unchanged"]].filter(([count]) => count);
    this.tile(0, short(progress.rows, 10_000_000), kinds.map(([count, word]) => `${short(count)} ${word}`).join(", ") || "none yet");
    const { limit } = progress;
    this.tile(1, rate(this.isRunning ? progress.rows_per_second : progress.rows / this.seconds), this.isRunning ? "rows, at present" : "rows, on average");
    this.tile(2, short(progress.requests, 1_000_000), requestsOf(progress, limit, this.isRunning));
    this.tile(3, `${whole(progress.shards_ended)} of ${whole(progress.shards_total)}`, `${percent(progress.share)} of the whole`);
    this.tile(5, whole(progress.quarantined), progress.quarantined ? `${percent(progress.quarantined / (progress.rows + progress.quarantined))} of records` : "no quarantined records");
    this.values[5].value.classList.toggle("soft", !progress.quarantined);
    this.drawTime();
  }

  get seconds() {
    const { started_at: from, finished_at: to } = this.progress;
    return Math.max(0.001, ((to ? Date.parse(to) : world.now()) - Date.parse(from)) / 1_000);
  }

  drawTime() {
    const left = this.progress.seconds_left;
    const words = !this.isRunning ? "total duration" : left == null ? "no forecast yet" : `about ${span(Math.round(left))} left`;
    this.tile(4, span(Math.round(this.seconds)), words);
  }

  /** @param {number} at @param {string} value @param {string} note */
  tile(at, value, note) {
    showFigure(this.values[at].value, value);
    text(this.values[at].note, note);
    this.values[at].note.title = note;
  }

  /** @param {any} progress */
  drawBar({ shards, share, budget }) {
    const order = ["done", "split", "parked", "running", "waiting"].filter((state) => shards[state]);
    fill(this.bar, order.map((state) => {
      const part = h("span", { data: { tone: TONES[state] } });
      part.style.flexGrow = String(shards[state]);
      return part;
    }));
    this.bar.setAttribute("aria-label", `${percent(share)}; shards: ${order.map((state) => `${shards[state]} ${state}`).join(", ")}`);
    this.bar.title = budget ? `${whole(budget.requests)} requests${budget.left == null ? "" : `, ${whole(budget.left)} left`}` : "";
  }
}

/** "12.3/s of at most 50 per second", "1,036 of 2,000", "$4.20" @param {any} progress @param {any} limit @param {boolean} isRunning */
function requestsOf({ requests_per_second: pace, budget }, limit, isRunning) {
  const said = [];
  if (isRunning) said.push(limit ? `${rate(pace)} of ${most(limit)}` : rate(pace));
  if (budget?.left != null) said.push(`${short(budget.left)} left`);
  if (budget?.cost != null) said.push(money(budget.cost, budget.currency));
  if (!said.length && limit) said.push(`at most ${most(limit)}`);
  return said.join(", ");
}

/** @param {{count: number, window_seconds: number}} limit */
function most({ count, window_seconds: seconds }) {
  return seconds === 1 ? `${whole(count)}/s` : perWindow(count, seconds);
}
