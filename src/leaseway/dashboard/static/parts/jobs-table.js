/** Jobs as rows: identity, state, and what happens next. */

import { h } from "../lib/dom.js";
import { ms, span } from "../lib/format.js";
import { link } from "../lib/router.js";
import { world } from "../lib/store.js";
import { chip } from "../components/chip.js";
import { table } from "../components/table.js";
import { since, until } from "../components/times.js";

const SHOWN = ["id", "state", "attempts", "attempts_max", "lease_owner", "lease_until", "cancel_requested", "run_at", "finished_at", "last_error_code"];

/** Pending is two things: waiting for its time, or ready and waiting for a worker. @param {any} job */
export function stateOf(job) {
  if (job.state !== "pending") return job.state;
  return ms(job.run_at) > world.now() ? "scheduled" : "ready";
}

/** @param {any} job */
export function jobHref(job) {
  return link(`/jobs/${encodeURIComponent(job.id)}`);
}

/**
 * @param {{isChosen: (job: any) => boolean, choose: (job: any, isOn: boolean, isRange: boolean) => void, withTenant: boolean}} how
 */
export function jobsTable({ isChosen, choose, withTenant }) {
  return table({
    label: "Jobs",
    keyOf: (job) => job.id,
    href: jobHref,
    versionOf: (job) => JSON.stringify([SHOWN.map((name) => job[name]), stateOf(job), isChosen(job)]),
    columns: [
      { label: "Select", quiet: true, class: "tight pick", cell: (job) => box(job, isChosen(job), choose) },
      { label: "Kind", class: "name", cell: (job) => h("a", { href: jobHref(job) }, job.kind) },
      { label: "Id", class: "tight spare", cell: (job) => h("span.id", job.id) },
      { label: "State", class: "tight state", cell: (job) => chip(stateOf(job)) },
      { label: "Now", class: "full", cell: nowOf },
      { label: "Attempts", class: "num spare", cell: (job) => `${job.attempts} of ${job.attempts_max}`, number: (job) => job.attempts },
      { label: withTenant ? "Queue, tenant" : "Queue", class: "full", cell: (job) => laneOf(job, withTenant) },
      { label: "Submitted", class: "num spare", cell: (job) => since(job.created_at) },
    ],
  });
}

/** @param {any} job @param {boolean} checked @param {(job: any, isOn: boolean, isRange: boolean) => void} choose */
function box(job, checked, choose) {
  const click = (/** @type {any} */ event) => choose(job, event.target.checked, event.shiftKey);
  return h("input", { type: "checkbox", checked, "aria-label": `Select ${job.kind} ${job.id}`, on: { click } });
}

/** @param {any} job @param {boolean} withTenant */
function laneOf(job, withTenant) {
  return h("span", job.queue, withTenant && h("span.muted", ` · ${job.tenant}`));
}

/** What there is to say of it now. @param {any} job */
export function nowOf(job) {
  switch (stateOf(job)) {
    case "scheduled":
      return [job.attempts > 0 && job.last_error_code && h("span.bad", `${job.last_error_code}, `), "runs ", until(job.run_at, { over: "any moment" })];
    case "ready":
      return h("span.muted", "due ", since(job.run_at));
    case "leased":
      return job.cancel_requested ? h("span.warn", "asked to stop") : h("span.muted", "on ", h("span.mono", job.lease_owner));
    case "failed":
      return [h("span.bad", job.last_error_code ?? "failed"), h("span.muted", " ", since(job.finished_at))];
    default:
      return h("span.muted", since(job.finished_at), job.state === "done" && tookOf(job));
  }
}

/** From due to finished. @param {any} job */
export function tookOf(job) {
  const seconds = secondsOf(job);
  return seconds == null ? "" : `, took ${span(seconds)}`;
}

/** @param {any} job @returns {number | null} */
export function secondsOf(job) {
  const from = Math.max(ms(job.created_at), ms(job.run_at) || 0);
  const seconds = (ms(job.finished_at) - from) / 1000;
  return seconds >= 0 ? seconds : null;
}
