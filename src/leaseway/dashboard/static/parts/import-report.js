/** The report of a finished run. */

import { h } from "../lib/dom.js";
import { bytes, counted, short, span, whole } from "../lib/format.js";
import { factsOf } from "../components/dialog.js";

const SAMPLES_MAX = 5;
const DRIFT_MAX = 20;

/** @param {any} report */
export function reportOf(report) {
  const { changes } = report;
  /** @type {[string, any][]} */
  const facts = [
    ["Duration", span(report.seconds)],
    ["Read", `${counted(report.pages, "page")}, ${bytes(report.bytes)}, ${counted(report.requests, "request")}`],
    ["New rows", withSamples(changes.added, changes.samples.added)],
    ["Changed rows", withSamples(changes.changed, changes.samples.changed)],
    ["Removed rows", withSamples(changes.removed, changes.samples.removed)],
    ["Guards", guardsOf(report.guards)],
    ["Compared with", report.compared_with ? h("span.mono", report.compared_with) : "no complete run before it"],
  ];
  const slow = report.slowest.length > 0 && h("div", h("h3", "Slowest shards"), h("ul.plain", report.slowest.map((/** @type {string} */ key) => h("li", nameOf(key)))));
  return h("div.report", factsOf(facts), slow, driftOf(report.drift), warningsOf(report.notes));
}

/** @param {number} count @param {string[]} [samples] */
function withSamples(count, samples = []) {
  const some = samples.slice(0, SAMPLES_MAX).join(", ");
  return [whole(count), some && h("small", ` ${some}${count > SAMPLES_MAX ? " …" : ""}`)];
}

/** @param {Record<string, number>} guards */
function guardsOf(guards) {
  const said = Object.entries(guards).map(([name, count]) => `${name.replaceAll("_", " ")} ${short(count)} ×`);
  return said.join(", ") || "none triggered";
}

/** Without the source before it and the hash behind. @param {string} key */
function nameOf(key) {
  return key.split("/").slice(1, -1).join("/") || key;
}

/** Fields that came, went or changed their type. @param {any} drift */
function driftOf(drift) {
  const found = Object.entries(drift ?? {}).flatMap(([kind, fields]) => (Array.isArray(fields) ? fields.map((field) => `${kind.replaceAll("_", " ")}: ${said(field)}`) : []));
  return found.length > 0 && h("div", h("h3", "Drift"), h("ul.plain", found.slice(0, DRIFT_MAX).map((each) => h("li", each))));
}

/** @param {any} field */
function said(field) {
  return typeof field === "string" ? field : Object.values(field).map(String).join(" ");
}

/** @param {any} notes */
function warningsOf(notes) {
  const warnings = notes?.warnings ?? [];
  return warnings.length > 0 && h("div", h("h3", "Warnings"), h("ul.plain", warnings.map((/** @type {any} */ each) => h("li", String(each)))));
}
