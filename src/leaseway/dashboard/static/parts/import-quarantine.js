/** Quarantined records: shown, replayed or discarded. */

import { api, at, may } from "../lib/api.js";
import { fill, h, text } from "../lib/dom.js";
import { counted, whole } from "../lib/format.js";
import { card } from "../components/card.js";
import { confirmed } from "../components/dialog.js";
import { icon } from "../components/icons.js";
import { table } from "../components/table.js";
import { toast, toastProblem } from "../components/toast.js";

const SHOWN = 50;
const DOCUMENT_MAX = 4_000;

export class Quarantine {
  /** @type {any[]} */
  kept = [];
  words = h("small.muted");
  table = table({
    label: "Quarantine", keyOf: (record) => String(record.number), versionOf: (record) => String(record.number),
    columns: [
      { label: "Record", class: "name", cell: (record) => [record.external_id ?? "without an id", h("small.line", `number ${whole(record.number)}`)] },
      { label: "Problem", class: "full", cell: (record) => h("span.kept", h("span.chip", { data: { tone: "warn" } }, record.code), h("span", record.problem), documentOf(record)) },
      { label: "", quiet: true, class: "num tight", cell: (record) => may("imports:write") && this.dropping(record) },
    ],
  });
  replay = h("button", { type: "button", on: { click: () => this.tryAgain() } }, icon("retry"), "Try again");

  /** @param {string} source @param {string} run @param {AbortSignal} signal */
  constructor(source, run, signal) {
    this.source = source;
    this.run = run;
    this.signal = signal;
    this.card = card("Quarantine", { flush: true, more: this.replay }, this.table, h("div.table-foot", this.words));
    this.card.hidden = true;
    this.replay.hidden = !may("imports:write");
  }

  async look() {
    const query = { run: this.run, limit: SHOWN };
    const answer = await api.get(`/imports${at(this.source)}/quarantine`, query, { signal: this.signal });
    this.kept = answer.items;
    this.card.hidden = !this.kept.length;
    this.table.show(this.kept);
    text(this.words, `${answer.next ? `The oldest ${whole(SHOWN)}` : counted(this.kept.length, "record")}. Correct the spec, restart the service, and replay them: valid records become rows.`);
  }

  /** @param {any} record */
  dropping(record) {
    const label = `Discard record ${record.external_id ?? record.number}`;
    return h("button.icon-button", { type: "button", "aria-label": label, title: label, on: { click: () => this.drop(record) } }, icon("trash"));
  }

  async tryAgain() {
    await this.change("replay", { run: this.run }, (done) => `${counted(done.written, "row")} written, ${counted(done.quarantined, "record")} kept in quarantine`);
  }

  /** @param {any} record */
  async drop(record) {
    const about = `Record ${record.external_id ?? record.number}: ${record.problem}`;
    const title = "Discard this record?";
    if (!(await confirmed({ title, text: `${about}. It is deleted permanently; a later run may fetch it again.`, action: "Discard", danger: true }))) return;
    await this.change("discard", { run: this.run, numbers: [record.number] }, () => "Discarded");
  }

  /** @param {string} verb @param {any} body @param {(done: any) => string} words */
  async change(verb, body, words) {
    try {
      toast(words(await api.post(`/imports${at(this.source)}/quarantine/${verb}`, body)));
      await this.look();
    } catch (error) {
      toastProblem(error);
    }
  }
}

/** @param {any} record */
function documentOf(record) {
  const shown = record.document.slice(0, DOCUMENT_MAX);
  return h("details", h("summary", "document"), fill(h("pre.trace"), shown, shown.length < record.document.length && " …"));
}
