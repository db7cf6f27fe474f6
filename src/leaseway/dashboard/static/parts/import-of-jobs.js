/** A run of an import whose spec the service does not know, derived from its jobs: each shard is a job. */

import { may } from "../lib/api.js";
import { fill, h, text } from "../lib/dom.js";
import { counted, percent, short, whole } from "../lib/format.js";
import { card } from "../components/card.js";
import { copyable } from "../components/copy.js";
import { empty } from "../components/empty.js";
import { showFigure } from "../components/figure.js";
import { icon } from "../components/icons.js";
import { table } from "../components/table.js";
import { since } from "../components/times.js";
import { drawGrid, leftOf, limitsOf, paceOf, progressOf, runChip } from "./import-parts.js";
import { Paces, readRuns, shardOf, standingOf } from "./import-runs.js";
import { changeNamed, VERBS } from "./job-changes.js";
import { jobHref, nowOf } from "./jobs-table.js";

const RUNNING_SECONDS = 2;
const TILES = ["Rows", "Pace", "Shards", "Left"];
const TROUBLES_MAX = 50;

export class RunOfJobs {
  /** @type {import("./import-runs.js").Run | null} */
  run = null;
  paces = new Paces();
  chip = h("span");
  values = TILES.map(() => ({ value: h("span.tile-value"), note: h("span.tile-note") }));
  grid = h("div.shard-grid");
  running = table({
    label: "Running shards", keyOf: (job) => job.id, href: jobHref,
    columns: [
      { label: "Shard", class: "name", cell: (job) => h("a", { href: jobHref(job) }, shardOf(job)) },
      { label: "Progress", class: "full", cell: progressOf },
      { label: "Attempt", class: "num", cell: (job) => `${job.attempts} of ${job.attempts_max}` },
      { label: "Worker", class: "spare", cell: (job) => h("span.mono", job.lease_owner ?? "–") },
    ],
  });
  troubles = table({
    label: "Shards with problems", keyOf: (job) => job.id, href: jobHref,
    columns: [
      { label: "Shard", class: "name", cell: (job) => h("a", { href: jobHref(job) }, shardOf(job)) },
      { label: "Now", class: "full", cell: nowOf },
      { label: "Last error", class: "num", cell: (job) => since(job.last_error_at) },
    ],
  });
  runningCard = card("Running", { flush: true }, this.running);
  retry = h("button", { type: "button", on: { click: () => this.retryFailed() } }, icon("retry"), "Retry failed shards");
  troubleCard = card("Problems", { flush: true, more: this.retry }, this.troubles);

  /** @param {import("../lib/page.js").Page} page */
  constructor(page) {
    this.page = page;
  }

  async open() {
    await this.look();
    this.page.every(RUNNING_SECONDS, () => this.look());
  }

  async look() {
    const [run] = await readRuns(this.page.params.source, this.page.signal, this.page.params.run);
    if (!run) return this.miss();
    if (!this.run) this.build();
    this.run = run;
    this.draw(run);
  }

  miss() {
    const words = "Its jobs may have been pruned. To read the run from the sink:";
    const box = empty({ title: "There are no jobs of this run", text: words, command: `leaseway import report ${this.page.params.source}.toml --run ${this.page.params.run}`, icon: "imports" });
    fill(this.page, this.page.heading(this.page.params.source), h("div.card", box));
    this.run = null;
  }

  build() {
    const { source, run } = this.page.params;
    const back = h("a.back", { href: "#/imports" }, icon("left"), "Imports");
    const title = h("h1", { tabindex: "-1" }, source);
    const head = h("header.job-head", back, h("div.page-head", h("div.job-title", title, this.chip)), h("span.job-id", "run ", h("span.mono", run)));
    const tiles = h("div.tiles.four", TILES.map((name, at) => h("div.tile", h("span.tile-name", name), this.values[at].value, this.values[at].note)));
    const more = ["report", "quarantine", "status"].map((verb) => copyable(`leaseway import ${verb} ${source}.toml --run ${run}`));
    const words = h("p.muted", "For the contents of the sink, quarantined records, and the comparison with the previous run:");
    fill(this.page, head, tiles, card("Shards", { more: legend() }, this.grid), this.runningCard, this.troubleCard, card("Report and quarantine", {}, h("div.commands", words, more)));
  }

  /** @param {import("./import-runs.js").Run} run */
  draw(run) {
    const standing = standingOf(run);
    const running = run.jobs.filter((job) => job.state === "leased");
    const troubled = run.jobs.filter((job) => job.state === "failed" || (job.state === "pending" && job.last_error_code)).slice(0, TROUBLES_MAX);
    fill(this.chip, runChip(standing.state));
    const pending = standing.counts.pending;
    this.tile(0, short(standing.rows, 10_000_000), "written so far");
    this.tile(1, paceOf(this.paces.of(run, standing)), limitsOf(run.source) && `requests: ${limitsOf(run.source)}`);
    this.tile(2, `${whole(standing.ended)} of ${whole(standing.shards)}`, `${percent(standing.share)}; ${whole(pending)} not started`);
    this.tile(3, leftOf(standing), standing.counts.failed ? `${counted(standing.counts.failed, "shard")} failed` : "");
    drawGrid(this.grid, run.jobs);
    this.runningCard.hidden = !running.length;
    this.running.show(running);
    this.troubleCard.hidden = !troubled.length;
    this.retry.hidden = !standing.counts.failed || !may("jobs:write");
    this.troubles.show(troubled);
  }

  /** @param {number} at @param {string} value @param {string} note */
  tile(at, value, note) {
    showFigure(this.values[at].value, value);
    text(this.values[at].note, note);
  }

  async retryFailed() {
    const failed = (this.run?.jobs ?? []).filter((job) => job.state === "failed");
    if (await changeNamed(VERBS.retry, failed)) await this.look();
  }
}

function legend() {
  const states = [["done", "done"], ["leased", "under way"], ["none", "waiting"], ["scheduled", "later"], ["failed", "failed"]];
  return h("span.legend", states.map(([tone, word]) => h("span.key", { data: { tone } }, word)));
}
