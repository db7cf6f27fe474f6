/** Workers and fleets: what runs, how many should run and why, and a button that drains a worker. */

import { ApiProblem, isLeft } from "../lib/api.js";
import { fill, h } from "../lib/dom.js";
import { whole } from "../lib/format.js";
import { Page } from "../lib/page.js";
import { world } from "../lib/store.js";
import { card } from "../components/card.js";
import { empty, waiting } from "../components/empty.js";
import { table } from "../components/table.js";
import { since } from "../components/times.js";
import { drawPools, readPools } from "../parts/pools.js";
import { FIRST, drain, someOf, stateChip, workers, workersInWords } from "../parts/workers.js";

/** @typedef {import("../parts/workers.js").Worker} Worker */

export default class Workers extends Page {
  static title = "Workers";
  box = h("div", waiting(4));
  summary = h("p.lead");
  pools = h("div.pools");
  table = table({
    label: "Workers",
    keyOf: (worker) => worker.name,
    versionOf: (worker) => JSON.stringify(worker),
    columns: [
      { label: "Worker", class: "name", cell: (worker) => nameOf(worker) },
      { label: "State", cell: (worker) => stateChip(worker) },
      { label: "Slots", class: "num", cell: (worker) => slotsOf(worker) },
      { label: "Queues", class: "text", cell: (worker) => someOf(worker.queues) || "–" },
      { label: "Kinds", class: "full text", cell: (worker) => someOf(worker.kinds) || "–" },
      { label: "Since", class: "num spare", cell: (worker) => since(worker.since) },
      { label: "Last seen", class: "num", cell: (worker) => since(worker.seen_at) },
      { label: "Leases", class: "num", cell: (worker) => leasesOf(worker) },
      { label: "", class: "num", cell: (worker) => drainButton(worker) },
    ],
  });

  open() {
    fill(this, this.heading("Workers"), this.summary, this.pools, card("All workers", { flush: true }, this.box));
    this.when("workers", () => this.draw());
    this.draw();
    this.every(3, () => world.ask("workers"));
    this.every(3, () => this.look());
    this.look();
  }

  /** Nothing changes while the service does not answer: the list of workers below says that it is offline. */
  async look() {
    try {
      drawPools(this.pools, await readPools());
    } catch (error) {
      if (!isLeft(error) && !(error instanceof ApiProblem)) throw error;
    }
  }

  draw() {
    if (world.workers == null) return;
    const found = workers();
    fill(this.summary, found.length ? workersInWords(found) : "");
    if (!found.length) {
      const text = "Every machine that reaches the store or this service can run workers:";
      return fill(this.box, empty({ title: "No workers", text, command: FIRST, icon: "workers" }));
    }
    if (!this.table.isConnected) fill(this.box, this.table);
    this.table.show(found);
  }
}

/** @param {Worker} worker */
function nameOf(worker) {
  const version = worker.version && `leaseway ${worker.version}`;
  const tenant = worker.tenant && `only tenant ${worker.tenant}`;
  return h("span.mono", { title: [version, tenant].filter(Boolean).join(", ") }, worker.name);
}

/** @param {Worker} worker */
function slotsOf(worker) {
  return worker.slots ? `${whole(worker.used)} of ${whole(worker.slots)}` : "–";
}

/** @param {Worker} worker */
function leasesOf(worker) {
  const held = whole(worker.leased);
  return worker.expired ? h("span.bad", `${held}, ${whole(worker.expired)} expired`) : held;
}

/** @param {Worker} worker */
function drainButton(worker) {
  if (worker.state === "lost" || worker.state === "draining") return "";
  const label = { type: "button", "aria-label": `Drain ${worker.name}`, on: { click: () => drain(worker) } };
  return h("button.quiet", label, "Drain");
}
