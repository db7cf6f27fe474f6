/** The overview: throughput, latency, waiting lanes, limits, budgets and workers. */

import { may } from "../lib/api.js";
import { fill, h } from "../lib/dom.js";
import { Page } from "../lib/page.js";
import { world } from "../lib/store.js";
import { card, more } from "../components/card.js";
import { chart, legend } from "../components/chart.js";
import { CLOCK, lookOf } from "../components/scale.js";
import { empty, waiting } from "../components/empty.js";
import { rate, shortRate, span, whole } from "../lib/format.js";
import "../components/states.js";
import { submitting } from "../parts/first-job.js";
import { lanesTable, waitingFirst } from "../parts/lanes.js";
import { budgetList } from "../parts/budgets.js";
import { limitList } from "../parts/limits.js";
import { Tiles } from "../parts/tiles.js";
import { workerList } from "../parts/workers.js";

const LANES_MAX = 8;
const WORKERS_SECONDS = 5;
const SPEED = [
  { name: "done", tone: "accent" },
  { name: "failed", tone: "failed" },
];
const LATENCY = [
  { name: "p95", tone: "soft" },
  { name: "p50", tone: "accent" },
];

export default class Overview extends Page {
  static title = "Overview";
  tiles = new Tiles();
  speed = chart();
  latency = chart();
  states = /** @type {any} */ (document.createElement("lw-states"));
  lanes = lanesTable();
  lanesBox = h("div", waiting(5));
  lanesMore = h("div.table-foot");
  limits = h("ul.list");
  budgets = h("ul.list");
  workers = h("ul.list");

  open() {
    fill(this, this.heading("Overview"), this.tiles.element, this.charts(), this.work(), this.control());
    this.when("totals", () => this.drawTotals());
    this.when("tick", () => this.drawCharts());
    this.when("lanes", () => this.drawLanes());
    this.when("limits", () => limitList(this.limits));
    this.when("budgets", () => budgetList(this.budgets));
    this.when("workers", () => workerList(this.workers));
    this.draw();
  }

  charts() {
    const speed = card("Throughput", { class: "half", more: legend(SPEED) }, this.speed);
    const latency = card(
      "Latency, from due to done",
      { class: "half", more: legend([...LATENCY].reverse()) },
      this.latency,
    );
    return h("div.grid", speed, latency);
  }

  work() {
    const states = card("Jobs by state", { class: "wide", flush: true }, h("div.state-box", this.states));
    const lanes = card("Lanes", { class: "wide", flush: true, more: more("All lanes", "#/lanes") }, this.lanesBox);
    return h("div.grid", states, lanes);
  }

  control() {
    if (!may("operate")) return null;
    return h(
      "div.grid",
      card("Limits", { class: "third", flush: true, more: more("All limits", "#/limits") }, this.limits),
      card("Budgets", { class: "third", flush: true, more: more("All budgets", "#/budgets") }, this.budgets),
      card("Workers", { class: "third", flush: true, more: more("All workers", "#/workers") }, this.workers),
    );
  }

  draw() {
    this.drawTotals();
    this.drawCharts();
    this.drawLanes();
    limitList(this.limits);
    budgetList(this.budgets);
    workerList(this.workers);
  }

  drawTotals() {
    if (!world.totals) return;
    this.tiles.show();
    this.states.show(world.totals);
  }

  drawCharts() {
    const now = world.now();
    const seen = [world.done.points, world.failed.points];
    const speeds = SPEED.map((line, at) => ({ ...line, points: seen[at], area: at === 0 }));
    const spreads = [world.latency.worst.points, world.latency.middle.points];
    const latencies = LATENCY.map((line, at) => ({ ...line, points: spreads[at] }));
    // Both charts have the same time axis, so that simultaneous changes are aligned.
    const seconds = lookOf([...speeds, ...latencies], now);
    const none = "No job has finished since you opened this page";
    this.speed.show({ lines: speeds, now, seconds, say: rate, mark: shortRate, none: "Counting the first jobs …" });
    this.latency.show({ lines: latencies, now, seconds, say: span, orders: CLOCK, none });
    this.tiles.show();
    this.tiles.draw();
  }

  drawLanes() {
    if (!world.known.has("lanes")) return;
    const lanes = waitingFirst([...world.lanes.values()]);
    if (!lanes.length) {
      const text = "A lane appears with its first job. Submit one:";
      return fill(this.lanesBox, empty({ title: "No jobs yet", text, command: submitting(), icon: "lanes" }));
    }
    if (!this.lanes.isConnected) fill(this.lanesBox, this.lanes, this.lanesMore);
    this.lanes.show(lanes.slice(0, LANES_MAX));
    this.lanesMore.hidden = lanes.length <= LANES_MAX;
    fill(this.lanesMore, h("a", { href: "#/lanes" }, `and ${whole(lanes.length - LANES_MAX)} more`));
  }
}
