/** Imports: the runs of every source with progress, pace and remaining time. */

import { fill, h } from "../lib/dom.js";
import { counted, percent, whole } from "../lib/format.js";
import { Page, useStyles } from "../lib/page.js";
import { world } from "../lib/store.js";
import { card } from "../components/card.js";
import { empty, waiting } from "../components/empty.js";
import { table } from "../components/table.js";
import { since } from "../components/times.js";
import { leftOf, limitsOf, paceOf, runChip, runHref, shardBar } from "../parts/import-parts.js";
import { KnownImports, rowOf } from "../parts/import-known.js";
import { Paces, readRuns, sourcesIn, standingOf } from "../parts/import-runs.js";

useStyles(import.meta.url, "../styles/jobs.css");
useStyles(import.meta.url, "../styles/imports.css");

const LOOK_SECONDS = 4;
const FIRST = "leaseway import run places.toml";

/** @typedef {import("../parts/import-known.js").KnownRun} Row */

export default class Imports extends Page {
  static title = "Imports";
  box = h("div", waiting(4));
  summary = h("p.lead");
  paces = new Paces();
  /** @type {Row[]} */
  rows = [];
  known = new KnownImports();
  knownCard = card("Imports", { flush: true }, this.known.table);
  table = table({
    label: "Runs",
    keyOf: (/** @type {Row} */ row) => JSON.stringify([row.source, row.run]),
    href: runHref,
    versionOf: (row) => JSON.stringify([row.standing, row.pace, limitsOf(row.source)]),
    columns: [
      { label: "Source and run", class: "name", cell: (row) => [h("a", { href: runHref(row) }, row.source), " ", h("small", row.run)] },
      { label: "State", class: "tight state", cell: (row) => runChip(row.standing.state) },
      { label: "Shards", class: "full shards-cell", cell: shardsOf },
      { label: "Rows", class: "num", cell: (row) => whole(row.standing.rows), number: (row) => row.standing.rows },
      { label: "Pace", class: "num", cell: (row) => [paceOf(row.pace), limitsOf(row.source) && h("small.line.pace-limit", `requests: ${limitsOf(row.source)}`)] },
      { label: "Remaining", class: "num", cell: (row) => leftOf(row.standing) },
      { label: "Started", class: "num spare", cell: (row) => since(row.standing.began) },
    ],
  });

  async open() {
    this.knownCard.hidden = true;
    fill(this, this.heading("Imports"), this.summary, this.knownCard, card("Runs", { flush: true, class: "runs" }, this.box));
    if (!world.known.has("lanes")) await world.ask("lanes");
    this.when("import", (news) => this.hear(rowOf(news)));
    this.every(LOOK_SECONDS, () => this.look());
  }

  async look() {
    const known = await this.known.look(this.signal);
    const served = new Set(this.known.items.map((each) => each.source));
    // Runs of imports that the service does not know are derived from their jobs.
    const others = sourcesIn().filter((source) => !served.has(source));
    const read = await Promise.all(others.map((source) => readRuns(source, this.signal)));
    const rows = read.flat().map((run) => {
      const standing = standingOf(run);
      return { ...run, standing, pace: this.paces.of(run, standing) };
    });
    this.knownCard.hidden = !served.size;
    this.draw([...rows, ...known].sort((one, other) => (one.standing.began < other.standing.began ? 1 : -1)));
  }

  /** One of them, as it is now. @param {Row} row */
  hear(row) {
    const at = this.rows.findIndex((each) => each.source === row.source && each.run === row.run);
    if (at >= 0) this.draw(this.rows.with(at, row));
  }

  /** @param {Row[]} rows */
  draw(rows) {
    this.rows = rows;
    if (!rows.length && !this.knownCard.hidden) {
      fill(this.summary, "Nothing has been imported yet.");
      return fill(this.box, empty({ title: "No runs yet", text: "Start an import above. It is split into shards, each shard is a job, and rows appear on a map as they arrive.", icon: "imports" }));
    }
    if (!rows.length) {
      const text = "An import is split into shards, and each shard is a job. Describe the source in a file and run it on the service’s store. With leaseway serve --imports FOLDER you can start it from here:";
      fill(this.summary);
      return fill(this.box, empty({ title: "No imports yet", text, command: FIRST, icon: "imports" }));
    }
    const running = rows.filter((row) => row.standing.state === "running").length;
    fill(this.summary, `${counted(rows.length, "run")} of ${counted(new Set(rows.map((row) => row.source)).size, "source")}; ${running ? `${whole(running)} under way` : "none is running"}.`);
    if (!this.table.isConnected) fill(this.box, this.table);
    this.table.show(rows);
  }
}

/** @param {Row} row */
function shardsOf({ standing, isWhole }) {
  const words = `${isWhole ? "" : "at least "}${whole(standing.ended)} of ${counted(standing.shards, "shard")} ended, ${percent(standing.share).replace(" ", "\u00a0")}`;
  return h("span.shards-bar", shardBar(standing.counts), h("small", words));
}
