/** A run of an import that the service knows: map of arriving rows, shards, quarantine, report. */

import { api, at, may } from "../lib/api.js";
import { fill, h, text } from "../lib/dom.js";
import { counted, span, whole } from "../lib/format.js";
import { world } from "../lib/store.js";
import { card } from "../components/card.js";
import { copyable } from "../components/copy.js";
import { icon } from "../components/icons.js";
import { worldMap } from "../components/map.js";
import { table } from "../components/table.js";
import { since } from "../components/times.js";
import { toastProblem } from "../components/toast.js";
import { Figures } from "./import-figures.js";
import { runChip } from "./import-parts.js";
import { Points } from "./import-points.js";
import { Quarantine } from "./import-quarantine.js";
import { reportOf } from "./import-report.js";
import { queueOf } from "./import-runs.js";
import { areasOf, drawShards, progressIn, readShards, SHARDS_MAX } from "./import-shards.js";
import { resumeRun, startRun } from "./import-start.js";

const LOOK_SECONDS = 1;
const SHARDS_SECONDS = 3;
/** After this time without events, the progress is requested. */
const SILENT_MS = 2_500;
const SHOWN_MAX = 20;

export class ServedRun {
  /** @type {any} */
  progress = null;
  /** @type {any[]} */
  shards = [];
  heardAt = 0;
  readAt = -Infinity;
  /** The progress of the run when its shards were read. */
  shardsTold = "";
  chip = h("span");
  began = h("span");
  why = h("p.run-why", { role: "status", hidden: true });
  nobody = h("div.nobody", { hidden: true });
  figures = new Figures();
  map = worldMap();
  mapWords = h("span.muted");
  grid = h("ul.shard-grid");
  more = h("small.muted");
  running = table({
    label: "Running shards", keyOf: (shard) => shard.key,
    columns: [
      { label: "Shard", class: "name", cell: (shard) => shard.label },
      { label: "Progress", class: "full", cell: progressIn },
      { label: "Requests", class: "num", cell: (shard) => whole(shard.requests) },
      { label: "Started", class: "num", cell: (shard) => `${whole(shard.attempts)} ×` },
      { label: "For", class: "num spare", cell: (shard) => span(Math.round(shard.seconds)) },
    ],
  });
  troubles = table({
    label: "Shards with problems", keyOf: (shard) => shard.key,
    columns: [
      { label: "Shard", class: "name", cell: (shard) => shard.label },
      { label: "State", class: "tight state", cell: (shard) => h("span.chip", { data: { state: shard.state === "parked" ? "failed" : "leased" } }, shard.state) },
      { label: "Why", class: "full", cell: (shard) => h("span.said-line", { title: shard.why }, shard.why) },
    ],
  });
  runningCard = card("Running", { flush: true }, this.running);
  troubleCard = card("Problems", { flush: true }, this.troubles);
  report = h("div");
  reportCard = card("Report", { flush: true }, this.report);
  resume = h("button", { type: "button", on: { click: () => this.goOn() } }, icon("play"), "Resume");
  again = h("button", { type: "button", on: { click: () => this.startAgain() } }, icon("plus"), "New run");

  /** @param {import("../lib/page.js").Page} page @param {any} known the import */
  constructor(page, known) {
    this.page = page;
    this.known = known;
    this.source = known.source;
    this.run = page.params.run;
    this.points = new Points(this.map, this.source, this.run, page.signal, () => this.drawMapWords());
    this.quarantine = new Quarantine(this.source, this.run, page.signal);
    this.mapCard = card("Where rows arrive", { more: legendOf(known) }, this.map, this.mapWords);
    this.mapCard.hidden = !known.has_positions;
  }

  /** @param {any} progress */
  async open(progress) {
    this.build();
    this.page.when("import", (news) => news.source === this.source && news.run === this.run && this.hear(news));
    this.page.when("lanes", () => this.drawNobody());
    this.page.when("tick", () => this.figures.drawTime());
    this.hear(progress);
    await this.page.every(LOOK_SECONDS, () => this.look());
  }

  build() {
    const back = h("a.back", { href: "#/imports" }, icon("left"), "Imports");
    const title = h("h1", { tabindex: "-1" }, this.source);
    const actions = h("div.actions", this.resume, this.again);
    const head = h("header.job-head", back, h("div.page-head", h("div.job-title", title, this.chip), actions), h("span.job-id", "run ", h("span.mono", this.run), " → ", h("span.mono", this.known.table), " · ", this.began));
    const shards = card("Shards", { more: legend() }, this.grid, this.more);
    fill(this.page, head, this.why, this.nobody, this.figures.element, this.mapCard, shards, this.runningCard, this.troubleCard, this.quarantine.card, this.reportCard);
  }

  // -- polling ----------------------------------------------------------------------------------------------------------

  async look() {
    const { signal } = this.page;
    if (this.isRunning && performance.now() - this.heardAt > SILENT_MS) this.hear(await api.get(`/imports${at(this.source, "runs", this.run)}`, {}, { signal }));
    const { progress } = this;
    const isDue = performance.now() - this.readAt > this.pauseMs && this.shardsTold !== toldBy(progress);
    await Promise.all([this.known.has_positions && this.points.look(progress), isDue && this.readShards()]);
    this.drawMapWords();
  }

  get isRunning() {
    return this.progress.state === "running";
  }

  /** A run with very many shards is read less often. */
  get pauseMs() {
    return SHARDS_SECONDS * 1_000 * Math.max(1, this.shards.length / 400);
  }

  async readShards() {
    const told = toldBy(this.progress);
    this.shards = await readShards(this.source, this.run, this.page.signal);
    [this.readAt, this.shardsTold] = [performance.now(), told];
    this.drawShards();
  }

  /** @param {any} progress */
  hear(progress) {
    const before = this.progress;
    [this.progress, this.heardAt] = [progress, performance.now()];
    this.draw();
    if (before?.quarantined !== progress.quarantined) this.quarantine.look().catch((error) => this.page.stumble(error));
    if (before?.state !== progress.state) this.readReport().catch((error) => this.page.stumble(error));
  }

  async readReport() {
    this.reportCard.hidden = this.isRunning;
    if (this.isRunning) return;
    const found = await api.get(`/imports${at(this.source, "runs", this.run)}/report`, {}, { signal: this.page.signal });
    fill(this.report, reportOf(found));
  }

  // -- rendering --------------------------------------------------------------------------------------------------------

  draw() {
    const { progress } = this;
    fill(this.chip, runChip(progress.state));
    fill(this.began, progress.mode === "full" ? "everything" : "changes only", " · started ", since(progress.started_at));
    this.why.hidden = !progress.why;
    text(this.why, progress.why);
    this.resume.hidden = this.isRunning || progress.state === "complete" || !may("imports:write");
    this.again.hidden = this.isRunning || !may("imports:write");
    this.figures.show(progress);
    this.drawNobody();
  }

  drawShards() {
    const { shards } = this;
    drawShards(this.grid, shards);
    this.map.areas(areasOf(shards));
    text(this.more, shards.length < this.progress.shards_total && shards.length >= SHARDS_MAX ? `the first ${whole(shards.length)} of ${whole(this.progress.shards_total)}` : "");
    const running = shards.filter((shard) => shard.state === "running");
    const troubled = shards.filter((shard) => shard.why && !["done", "split"].includes(shard.state));
    this.runningCard.hidden = !running.length || !this.isRunning;
    this.running.show(running.slice(0, SHOWN_MAX));
    this.troubleCard.hidden = !troubled.length;
    this.troubles.show(troubled.slice(0, SHOWN_MAX));
  }

  drawMapWords() {
    this.mapCard.hidden = !this.known.has_positions || this.points.hasPositions === false;
    const places = this.map.count;
    const words = places ? `Rows at ${counted(places, "place")}, each half a degree wide.` : this.isRunning ? "Points appear as rows arrive." : "The rows of this table have no coordinates.";
    text(this.mapWords, words);
    this.map.setAttribute("role", "img");
    this.map.setAttribute("aria-label", `World map. ${words}`);
  }

  /** Shards wait, and no worker has started one. */
  drawNobody() {
    const lanes = [...world.lanes.values()].filter((lane) => lane.queue === queueOf(this.source));
    const ready = lanes.reduce((sum, lane) => sum + lane.ready, 0);
    const isAlone = this.isRunning && ready > 0 && lanes.every((lane) => !lane.leased && !lane.waits_for?.length);
    if (isAlone && this.nobody.hidden) {
      fill(this.nobody, icon("workers"), h("div", h("strong", "The shards wait for a worker."), h("p", "Start one or more workers where the spec is. They share the limits and can be stopped at any time:"), copyable(`leaseway import work ${this.known.spec}`)));
    }
    this.nobody.hidden = !isAlone;
  }

  // -- changing ---------------------------------------------------------------------------------------------------------

  async goOn() {
    try {
      if (await resumeRun(this.source, this.progress)) this.hear(await api.get(`/imports${at(this.source, "runs", this.run)}`));
    } catch (error) {
      toastProblem(error, "The run was not resumed");
    }
  }

  async startAgain() {
    try {
      await startRun(this.known);
    } catch (error) {
      toastProblem(error);
    }
  }
}

/** As long as it is the same, its shards are. @param {any} progress */
function toldBy({ shards, requests, state }) {
  return JSON.stringify([shards, requests, state]);
}

function legend() {
  const states = [["done", "done"], ["leased", "under way"], ["none", "waiting"], ["failed", "parked"]];
  return h("span.legend", states.map(([tone, word]) => h("span.key", { data: { tone } }, word)));
}

/** @param {any} known */
function legendOf(known) {
  return known.has_positions && h("span.legend", h("span.key", { data: { tone: "accent" } }, "written by this run"), h("span.key.other", "written earlier"));
}
