/** Six figures at the top, each with a sparkline of the last minutes. */

import { h, text } from "../lib/dom.js";
import { counted, rate, short, span, whole } from "../lib/format.js";
import { showFigure } from "../components/figure.js";
import { spark } from "../components/spark.js";
import { presentWorkers } from "./workers.js";
import { world } from "../lib/store.js";

/** @typedef {{name: string, value: () => string, note: () => string, points: () => any[], tone: string}} Figure */

/** @type {Figure[]} */
const FIGURES = [
  {
    name: "Ready",
    tone: "ready",
    value: () => jobs(world.totals?.ready),
    note: () => backlog(),
    points: () => world.ready.points,
  },
  {
    name: "Leased",
    tone: "leased",
    value: () => jobs(world.totals?.leased),
    note: () => owners(),
    points: () => world.leased.points,
  },
  {
    name: "Done",
    tone: "done",
    value: () => rate(world.done.last),
    note: () => `${short(world.totals?.done)} in total`,
    points: () => world.done.points,
  },
  {
    name: "Failed",
    tone: "failed",
    value: () => rate(world.failed.last),
    note: () => dead(),
    points: () => world.failed.points,
  },
  {
    name: "Latency, p50",
    tone: "accent",
    value: () => span(world.latency.middle.last),
    note: () => "from due to done",
    points: () => world.latency.middle.points,
  },
  {
    name: "Latency, p95",
    tone: "accent",
    value: () => span(world.latency.worst.last),
    note: () => "of the newest jobs",
    points: () => world.latency.worst.points,
  },
];

/** @param {number | undefined} count */
function jobs(count = 0) {
  return `${short(count, 1_000_000)} ${count === 1 ? "job" : "jobs"}`;
}

function backlog() {
  const scheduled = world.totals?.scheduled ?? 0;
  return scheduled ? `${short(scheduled)} scheduled` : "waiting to start";
}

function owners() {
  return world.workers == null ? "running" : `by ${counted(presentWorkers(), "worker")}`;
}

function dead() {
  const failed = world.totals?.failed ?? 0;
  return failed ? `${whole(failed)} dead letters` : "no dead letters";
}

export class Tiles {
  constructor() {
    this.tiles = FIGURES.map((figure) => ({
      figure,
      value: h("span.tile-value"),
      note: h("span.tile-note"),
      line: spark(),
    }));
    this.element = h(
      "div.tiles",
      this.tiles.map(({ figure, value, note, line }) =>
        h("div.tile", h("span.tile-name", figure.name), value, note, line),
      ),
    );
  }

  /** Updates the figures with every event. */
  show() {
    for (const { figure, value, note } of this.tiles) {
      const said = world.totals ? figure.value() : "–";
      showFigure(value, said);
      value.classList.toggle("soft", said === "–" || /^0(?![.\d])/.test(said));
      text(note, world.totals ? figure.note() : "");
    }
  }

  /** Updates the sparklines, which get one point per second. */
  draw() {
    for (const { figure, line } of this.tiles) line.show(figure.points(), figure.tone);
  }
}
