/** Lanes: jobs that share queue, tenant, limits and budget; what each lane waits for, and until when. */

import { api, may } from "../lib/api.js";
import { fill, h } from "../lib/dom.js";
import { counted, whole } from "../lib/format.js";
import { Page } from "../lib/page.js";
import { world } from "../lib/store.js";
import { card } from "../components/card.js";
import { confirmed } from "../components/dialog.js";
import { empty, waiting } from "../components/empty.js";
import { icon } from "../components/icons.js";
import { toast, toastProblem } from "../components/toast.js";
import { isShut, lanesTable, waitingFirst } from "../parts/lanes.js";
import { pauseButton, switchPause } from "../parts/pauses.js";

const PAUSES_SECONDS = 5;
const PAUSES_MAX = 200;
const WORK = "leaseway submit mymodule:app hello name=world";

export default class Lanes extends Page {
  static title = "Lanes";
  box = h("div", waiting(5));
  table = lanesTable({ extra: this.further(), isPaused: (lane) => !!this.pauseOf(lane) });
  summary = h("p.lead");
  /** In force now; a pause may be wider than a lane. @type {{queue: string, tenant: string | null, since: string}[]} */
  pauses = [];

  open() {
    fill(this, this.heading("Lanes"), this.summary, card("What lanes wait for", { flush: true }, this.box));
    this.when("lanes", () => this.draw());
    this.draw();
    if (may("operate")) this.every(PAUSES_SECONDS, () => this.look());
    return world.ask("lanes");
  }

  further() {
    if (!may("operate")) return [];
    return [{ label: "Actions", quiet: true, class: "tight", cell: (/** @type {any} */ lane) => this.actions(lane) }];
  }

  async look() {
    this.pauses = (await api.get("/lanes/pauses", { limit: PAUSES_MAX }, { signal: this.signal })).items;
    this.draw();
  }

  /** The widest, if there are several. @param {any} lane */
  pauseOf({ queue, tenant }) {
    const found = this.pauses.filter((pause) => pause.queue === queue && [null, tenant].includes(pause.tenant));
    return found.find((pause) => pause.tenant === null) ?? found[0];
  }

  draw() {
    if (!world.known.has("lanes")) return;
    const lanes = waitingFirst([...world.lanes.values()]);
    const shut = lanes.filter(isShut).length;
    fill(
      this.summary,
      lanes.length
        ? `${counted(lanes.length, "lane")}; ${shut ? `${whole(shut)} with jobs that wait` : "none is waiting"}.`
        : "",
    );
    if (!lanes.length) {
      const text = "A lane is created by its first job. It contains all jobs with the same queue, tenant, limits and budget.";
      return fill(this.box, empty({ title: "No lanes yet", text, command: WORK, icon: "lanes" }));
    }
    if (!this.table.isConnected) fill(this.box, this.table);
    this.table.show(lanes);
  }

  /** @param {any} lane */
  actions(lane) {
    const label = `Retry the failed jobs of ${lane.queue}`;
    const retry = h(
      "button.icon-button",
      { type: "button", "aria-label": label, title: label, on: { click: () => this.retry(lane) } },
      icon("retry"),
    );
    const pause = pauseButton(`${lane.queue} of ${lane.tenant}`, !!this.pauseOf(lane), () => this.pause(lane));
    return h("span.row-actions", lane.failed > 0 && retry, pause);
  }

  /** @param {any} lane */
  async pause(lane) {
    const pause = this.pauseOf(lane);
    const { queue, tenant } = pause ?? lane;
    const facts = /** @type {[string, any][]} */ ([
      ["Queue", queue],
      ["Tenant", tenant ?? "all tenants"],
    ]);
    const words = "None of its jobs starts until it is resumed. Running jobs finish.";
    const given = { what: `queue ${queue}`, isPaused: !!pause, words, path: "/lanes", body: { queue, tenant }, facts };
    if (await switchPause(given)) await Promise.all([this.look(), world.ask("lanes")]);
  }

  /** @param {any} lane */
  async retry(lane) {
    const facts = /** @type {[string, any][]} */ ([
      ["Queue", lane.queue],
      ["Tenant", lane.tenant],
      ["Failed", counted(lane.failed, "job")],
    ]);
    const sure = await confirmed({
      title: "Retry the failed jobs of this lane?",
      text: "Each job starts again with all its attempts.",
      facts,
      action: `Retry ${counted(lane.failed, "job")}`,
      keep: lane.failed === 1 ? "Leave it" : "Leave them",
    });
    if (!sure) return;
    try {
      const filter = { states: ["failed"], queue: lane.queue, tenant: lane.tenant };
      const answer = await api.post("/jobs/retry", { filter, confirm: lane.failed });
      toast(`${counted(answer.retried ?? lane.failed, "job")} will be retried`);
      await world.ask("lanes");
    } catch (error) {
      toastProblem(error, "Not retried");
    }
  }
}
