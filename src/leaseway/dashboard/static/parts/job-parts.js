/** The parts of a job's page: explanation, facts, timeline, errors. */

import { fill, h, keyed } from "../lib/dom.js";
import { counted, figure, fully, moment, span } from "../lib/format.js";
import { link } from "../lib/router.js";
import { copyable } from "../components/copy.js";
import { meter } from "../components/gauge.js";
import { since, until } from "../components/times.js";
import { timeline } from "../components/timeline.js";
import { namesIn, waitOf } from "./lanes.js";
import { secondsOf } from "./jobs-table.js";

/** @type {Record<string, [string, string]>} */
const HAPPENED = {
  submitted: ["Submitted", "none"], due: ["Due", "scheduled"], failed_attempt: ["failed", "failed"], lease_renewed: ["Lease renewed", "leased"],
  done: ["Done", "done"], failed: ["Failed", "failed"], cancelled: ["Cancelled", "cancelled"],
};
const COMMAND = /^(.*?):? (leaseway .*)$/;

// -- why ----------------------------------------------------------------------------------------------------------------

/** @param {any} why @param {any} job */
export function whyOf(why, job) {
  const at = why.until && h("p.why-until", ending(why), " ", h("strong", until(why.until, { over: "any moment" })));
  const shuts = why.waits_for.length > 1 && h("ul.waits", why.waits_for.map(waitOf));
  return [h("p.why-text", why.text), at, shuts, adviceOf(why, job)];
}

/** @param {any} why */
function ending(why) {
  return ["leased", "cancelling"].includes(why.code) ? "Unless renewed, the lease ends" : "It can run";
}

/** What this page has a button for needs no command. @param {any} why @param {any} job */
function adviceOf(why, job) {
  const lines = (why.advice ?? "").split("\n").filter((/** @type {string} */ line) => line && !line.includes(job.id));
  return lines.map((/** @type {string} */ line) => {
    const [, words, command] = COMMAND.exec(line) ?? [];
    return command ? h("p.why-advice", words, ": ", copyable(command)) : h("p.why-advice", line);
  });
}

// -- facts --------------------------------------------------------------------------------------------------------------

/** @param {any} job @returns {[string, any][]} */
export function factsOf(job) {
  const needs = namesIn(job.needs);
  /** @type {[string, any][]} */
  const facts = [
    ["Queue", h("a", { href: link("/jobs", { queue: job.queue }) }, job.queue)],
    ["Tenant", job.tenant],
    ["Attempts", `${job.attempts} of ${job.attempts_max}`],
    ["Priority", job.priority],
    ["Needs", needs.length ? needs.join(", ") : "no limits or budgets"],
    ["Submitted", instant(job.created_at)],
    ["Due", job.run_at === job.created_at ? "immediately" : instant(job.run_at)],
    ["Finished", job.finished_at && instant(job.finished_at)],
    ["Duration", job.finished_at && `${span(secondsOf(job))} from due to finished`],
    ["Worker", job.lease_owner && h("span.mono", job.lease_owner)],
    ["Lease", `${span(job.lease_seconds)}, renewed while it runs`],
    ["Timeout", job.timeout_seconds == null ? "none" : `${span(job.timeout_seconds)} per attempt`],
    ["Fence", job.fence],
    ["Shard", job.shard_key],
  ];
  return facts.filter(([, value]) => value != null && value !== "");
}

/** @param {string} at */
function instant(at) {
  return h("span", { title: fully(at) }, moment(at), h("small", " · ", since(at)));
}

// -- progress -----------------------------------------------------------------------------------------------------------

/** As the handler told it last. @param {{done: number, total: number | null, message: string | null}} progress */
export function progressOf({ done, total, message }) {
  const words = total == null ? figure(done) : `${figure(done)} of ${figure(total)}`;
  const row = h("div.progress-row", h("strong", words), message && h("span.muted", message));
  return h("div.progress", row, total && meter(done / total, "Progress", "leased"));
}

// -- timeline ----------------------------------------------------------------------------------------------------------

/** @param {any} job */
export function lifeOf(job) {
  return timeline(job.timeline.map((/** @type {any} */ event) => {
    const [words, tone] = HAPPENED[event.what] ?? [event.what, "none"];
    const title = event.what === "failed_attempt" ? h("span", `Attempt ${event.attempt} failed: `, h("span.bad", event.code)) : words;
    return { at: event.at, title, tone, about: aboutOf(event, job) };
  }));
}

/** @param {any} event @param {any} job */
function aboutOf(event, job) {
  if (event.what === "lease_renewed") return `attempt ${event.attempt}, by ${job.lease_owner}`;
  if (event.what === "done" || event.what === "failed") return `in attempt ${event.attempt} of ${job.attempts_max}`;
  return null;
}

/** The last one first: it is what people come for. @param {HTMLElement} list @param {any[]} errors */
export function drawErrors(list, errors) {
  if (!list.querySelector("[data-attempt]")) fill(list);
  const newest = [...errors].reverse();
  keyed(list, newest, (error) => `${error.attempt} ${error.at}`, (error) => errorOf(error, error === newest[0]));
}

/** @param {any} error @param {boolean} isLast */
function errorOf(error, isLast) {
  const head = h("div.error-head", h("strong.bad", error.code), h("small", `attempt ${error.attempt} · `, instant(error.at)));
  const lines = error.traceback.trimEnd().split("\n").length;
  const trace = error.traceback && h("details", h("summary", `Traceback, ${counted(lines, "line")}`), h("pre.trace", { tabindex: "0" }, error.traceback.trimEnd()));
  return h("li.error", { class: isLast ? "last" : "", data: { attempt: error.attempt } }, head, h("p.error-message", error.message || "without a message"), trace);
}
