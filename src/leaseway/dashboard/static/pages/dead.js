/** Dead letters: failed jobs, grouped by error, to be retried or discarded together. */

import { may } from "../lib/api.js";
import { fill, h } from "../lib/dom.js";
import { counted, short, whole } from "../lib/format.js";
import { Page, useStyles } from "../lib/page.js";
import { world } from "../lib/store.js";
import { card } from "../components/card.js";
import { empty, waiting } from "../components/empty.js";
import { meter } from "../components/gauge.js";
import { icon } from "../components/icons.js";
import { table } from "../components/table.js";
import { since } from "../components/times.js";
import { filterOf, groupsOf, jobsHref, readDead, Samples } from "../parts/dead-groups.js";
import { changeMatching, VERBS } from "../parts/job-changes.js";
import { jobHref } from "../parts/jobs-table.js";

useStyles(import.meta.url, "../styles/jobs.css");

const LOOK_SECONDS = 20;
/** The minimal time between two reads of the page, however fast jobs fail. */
const CHANGED_SECONDS = 3;

/** @typedef {import("../parts/dead-groups.js").Group} Group */

export default class Dead extends Page {
  static title = "Dead letters";
  /** @type {Group[] | null} */
  groups = null;
  isAll = true;
  samples = new Samples();
  summary = h("p.lead");
  box = h("div", waiting(5));
  table = this.made();
  lookedAt = 0;
  /** @type {number | undefined} */
  failed = undefined;

  open() {
    fill(this, this.heading("Dead letters"), this.summary, card("By error and kind", { flush: true }, this.box));
    this.when("tick", () => this.tick());
    return this.look();
  }

  made() {
    /** @type {import("../components/table.js").Column<Group>[]} */
    const columns = [
      { label: "Error", class: "name code", cell: (group) => h("a.bad", { href: jobsHref(group) }, group.code || "without a code") },
      { label: "Kind", cell: (group) => group.kind },
      { label: "Jobs", class: "num", cell: (group) => h("a", { href: jobsHref(group) }, this.count(group)) },
      { label: "Share", class: "spare share", cell: (group) => meter(group.jobs.length / this.most, `Share of ${group.code} in ${group.kind}`, "failed") },
      { label: "Last message", class: "full", cell: (group) => this.said(group) },
      { label: "Last", class: "num", cell: (group) => since(group.newest.finished_at) },
      { label: "First", class: "num spare", cell: (group) => since(group.oldest.finished_at) },
    ];
    if (may("jobs:write")) columns.push({ label: "Actions", quiet: true, class: "tight", cell: (group) => this.actions(group) });
    const versionOf = (/** @type {Group} */ group) => JSON.stringify([group.jobs.length, group.newest, group.oldest, this.samples.of(group), this.most, this.isAll]);
    return table({ label: "Failed jobs by error and kind", columns, keyOf: (group) => group.key, href: jobsHref, versionOf });
  }

  get most() {
    return Math.max(1, ...(this.groups ?? []).map((group) => group.jobs.length));
  }

  /** @param {Group} group */
  count(group) {
    return `${this.isAll ? "" : "≥ "}${whole(group.jobs.length)}`;
  }

  /** @param {Group} group */
  said(group) {
    const where = [...group.queues].slice(0, 3).join(", ") + (group.queues.size > 3 ? " …" : "");
    const tenants = may("operate") && group.tenants.size > 1 ? `, ${counted(group.tenants.size, "tenant")}` : "";
    return h("span.last-said", h("a.said-line", { href: jobHref(group.newest) }, this.samples.of(group) || "…"), h("small", `queue ${where}${tenants}`));
  }

  /** @param {Group} group */
  actions(group) {
    const button = (/** @type {import("../parts/job-changes.js").Verb} */ verb) => {
      const label = `${verb.label} all ${group.code} of ${group.kind}`;
      return h("button.icon-button", { type: "button", "aria-label": label, title: `${verb.label} all of this group`, on: { click: () => this.act(verb, group) } }, icon(verb.icon));
    };
    return h("span.row-actions", button(VERBS.retry), button(VERBS.discard));
  }

  /** @param {import("../parts/job-changes.js").Verb} verb @param {Group} group */
  async act(verb, group) {
    if (await changeMatching(verb, filterOf(group), `${group.kind} with ${group.code}`)) await this.look();
  }

  tick() {
    const isOther = world.totals != null && world.totals.failed !== this.failed;
    const seconds = isOther ? CHANGED_SECONDS : LOOK_SECONDS;
    if (!document.hidden && Date.now() - this.lookedAt >= seconds * 1_000) this.look().catch((error) => this.stumble(error));
  }

  async look() {
    this.lookedAt = Date.now();
    this.failed = world.totals?.failed;
    const { jobs, isAll } = await readDead(this.signal);
    this.isAll = isAll;
    this.groups = groupsOf(jobs);
    this.draw(jobs.length);
    if (await this.samples.ask(this.groups, this.signal)) this.draw(jobs.length);
  }

  /** @param {number} read */
  draw(read) {
    /** @type {Group[]} */
    const groups = this.groups ?? [];
    fill(this.summary, groups.length ? this.told(read, groups.length) : "");
    if (!groups.length) return fill(this.box, this.nothing());
    if (!this.table.isConnected) fill(this.box, this.table);
    this.table.show(groups);
  }

  /** @param {number} read @param {number} groups */
  told(read, groups) {
    const all = Math.max(read, world.totals?.failed ?? read);
    const which = this.isAll ? counted(read, "failed job") : `The newest ${whole(read)} of ${short(all, 1_000_000)} failed jobs`;
    return `${which} in ${counted(groups, "group")}. They stay until you retry or discard them, or until they are pruned.`;
  }

  nothing() {
    const text = "A job that has used all its attempts is kept here with its errors. On the command line:";
    return empty({ title: "No dead letters", text, command: "leaseway jobs list --state failed", icon: "check" });
  }
}
