/** Workers: which ones hold leases, how many, for which jobs, and until when. */

import { fill, h } from "../lib/dom.js";
import { counted, whole } from "../lib/format.js";
import { Page } from "../lib/page.js";
import { world } from "../lib/store.js";
import { card } from "../components/card.js";
import { empty, waiting } from "../components/empty.js";
import { meter } from "../components/gauge.js";
import { table } from "../components/table.js";
import { since, until } from "../components/times.js";
import { FIRST, fleet } from "../parts/workers.js";

export default class Workers extends Page {
  static title = "Workers";
  box = h("div", waiting(4));
  summary = h("p.lead");
  most = 1;
  table = table({
    label: "Workers",
    keyOf: (worker) => worker.name,
    versionOf: (worker) => JSON.stringify([worker, this.most, fleet.kinds(worker.name)]),
    columns: [
      { label: "Worker", class: "name", cell: (worker) => h("span.mono", worker.name) },
      { label: "Works on", class: "full text", cell: (worker) => fleet.kinds(worker.name) || "–" },
      { label: "Leases", class: "num", cell: (worker) => whole(worker.leased), number: (worker) => worker.leased },
      {
        label: "Share",
        class: "spare share",
        cell: (worker) => meter(worker.leased / this.most, `Leases of ${worker.name}`, "leased"),
      },
      { label: "Last seen", class: "num", cell: (worker) => since(worker.seen_at) },
      { label: "Next lease ends", class: "num", cell: (worker) => until(worker.until, { over: "now" }) },
      {
        label: "Expired",
        class: "num",
        cell: (worker) => (worker.expired ? h("span.bad", whole(worker.expired)) : "0"),
        number: (worker) => worker.expired,
      },
    ],
  });

  open() {
    fill(this, this.heading("Workers"), this.summary, card("Workers with leases", { flush: true }, this.box));
    this.when("workers", () => this.draw());
    this.draw();
    this.every(3, () => Promise.all([fleet.look(this.signal), world.ask("workers")]));
  }

  draw() {
    if (world.workers == null) return;
    const workers = fleet.workers();
    const leases = workers.reduce((sum, worker) => sum + worker.leased, 0);
    const told = `${counted(workers.length, "worker")} with ${counted(leases, "lease")}, seen in the last minute.`;
    fill(this.summary, workers.length ? told : "");
    if (!workers.length) {
      const text =
        "A worker is shown while it holds a lease. Every machine that reaches the store or this service can run workers:";
      return fill(this.box, empty({ title: "No workers", text, command: FIRST, icon: "workers" }));
    }
    this.most = Math.max(1, ...workers.map((worker) => worker.leased));
    if (!this.table.isConnected) fill(this.box, this.table);
    this.table.show(workers);
  }
}
