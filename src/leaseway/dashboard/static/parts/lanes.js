/** Lanes as rows: the number of jobs, and what they wait for. */

import { may } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { short, span } from "../lib/format.js";
import { laneKey, world } from "../lib/store.js";
import { note } from "../components/chip.js";
import { table } from "../components/table.js";
import { instantIn, until } from "../components/times.js";
import { workers } from "./workers.js";

const BACKLOG_SECONDS = 5;
const LATELY_MS = 12_000;
const LANES_MAX = 1_000;
const COUNTS = ["ready", "scheduled", "leased", "done", "failed"];

/** @param {{extra?: any[], isPaused?: (lane: any) => boolean}} [how] `extra`: further columns */
export function lanesTable({ extra = [], isPaused = () => false } = {}) {
  const columns = [
    { label: "Queue", class: "name", cell: (/** @type {any} */ lane) => laneName(lane, isPaused(lane)) },
    ...(may("operate") ? [{ label: "Tenant", cell: (/** @type {any} */ lane) => lane.tenant }] : []),
    ...COUNTS.map((state) => ({
      label: state[0].toUpperCase() + state.slice(1),
      class: "num",
      cell: (/** @type {any} */ lane) => countOf(lane, state),
      number: (/** @type {any} */ lane) => lane[state],
    })),
    { label: "Waits for", class: "full text", cell: waitsOf, number: (/** @type {any} */ lane) => lane.ready },
    { label: "Oldest", class: "num", cell: oldestOf, number: (/** @type {any} */ lane) => lane.ready },
    ...extra,
  ];
  const versionOf = (/** @type {any} */ lane) => JSON.stringify([lane, isPaused(lane)]);
  return table({ label: "Lanes", columns, keyOf: laneKey, versionOf });
}

/** @param {any} lane @param {boolean} isPaused */
function laneName(lane, isPaused) {
  return h("span", h("span", lane.queue), " ", isPaused && note("paused", "warn"), needsOf(lane));
}

/** @param {any} lane @param {string} state */
function countOf(lane, state) {
  if (!lane[state]) return "0";
  const filter = new URLSearchParams({
    state: state === "ready" || state === "scheduled" ? "pending" : state,
    queue: lane.queue,
    tenant: lane.tenant,
  });
  return h("a", { href: `#/jobs?${filter}` }, short(lane[state], 1_000_000));
}

/** Limits and budgets that its jobs need. @param {any} lane */
function needsOf(lane) {
  const names = namesIn(lane.needs);
  return names.length ? h("small", names.join(", ")) : null;
}

/** @param {any} needs @returns {string[]} */
export function namesIn(needs) {
  if (needs == null || typeof needs !== "object") return [];
  const listed = [...(needs.limits ?? []), ...(needs.budgets ?? [])];
  return listed
    .map((each) => (typeof each === "string" ? each : (each.name ?? each.limit ?? each.budget ?? "")))
    .filter(Boolean);
}

/** What shut it last. @type {Map<string, {shuts: any[], at: number}>} */
const lately = new Map();

/**
 * What keeps jobs from starting. A limit that grants one permit at a time opens for moments. It stays the reason,
 * because rows that change with every permit cannot be read.
 * @param {any} lane
 * @returns {any[]}
 */
function shutsOf(lane) {
  const key = laneKey(lane);
  if (lane.waits_for?.length) {
    if (lately.size >= LANES_MAX) lately.clear();
    lately.set(key, { shuts: lane.waits_for.filter(isTimed).map(opened), at: world.now() });
    return lane.waits_for;
  }
  const last = lately.get(key);
  return last && lane.ready && world.now() - last.at < LATELY_MS ? last.shuts : [];
}

/** Whether the lane opens without a change by an operator. @param {any} shut */
function isTimed(shut) {
  return shut.wait_seconds > 0 && !shut.advice;
}

/** It may open any moment. @param {any} shut */
function opened(shut) {
  return { ...shut, wait_seconds: 0, isOpen: true };
}

/** @param {any} lane */
export function isShut(lane) {
  return lane.ready > 0 && shutsOf(lane).length > 0;
}

/** @param {any} lane */
function waitsOf(lane) {
  if (!lane.ready) return "–";
  const shuts = shutsOf(lane);
  return h("ul.waits", shuts.length ? shuts.map(waitOf) : [h("li.muted", workerWords(lane))]);
}

/** @param {any} lane */
function workerWords(lane) {
  const present = workers().filter((worker) => worker.state !== "lost");
  if (world.workers == null || lane.oldest_ready_seconds < BACKLOG_SECONDS) return "a free worker";
  if (!present.length) return "a worker: none is running";
  const serves = present.some((worker) => !worker.queues.length || worker.queues.includes(lane.queue));
  return serves ? "a free worker" : "a worker for this queue: none serves it";
}

/** How long the oldest job has been ready. @param {any} lane */
function oldestOf(lane) {
  const seconds = lane.oldest_ready_seconds;
  if (!lane.ready || seconds == null) return "–";
  return seconds < 1 ? "just now" : span(Math.floor(seconds));
}

/** One thing that keeps jobs from starting, in words. @param {any} shut */
export function waitOf(shut) {
  const at = shut.wait_seconds > 0 ? instantIn(shut.wait_seconds) : null;
  return h(
    "li",
    h("strong", `${shut.what} ${shut.name}`),
    ` ${shut.why}`,
    at && h("span.until", " · opens ", until(at, { over: "any moment" })),
    shut.isOpen && h("span.until", " · opens any moment"),
    shut.advice && h("small.advice", shut.advice),
  );
}

/**
 * Waiting lanes come first, those with the most jobs on top; the rest by name. Jobs that are ready for a moment do not
 * count as a backlog, because rows that move with every job cannot be read.
 * @param {any[]} lanes
 */
export function waitingFirst(lanes) {
  const waits = (/** @type {any} */ lane) => isShut(lane) || lane.oldest_ready_seconds >= BACKLOG_SECONDS;
  const size = (/** @type {any} */ lane) => (waits(lane) ? lane.ready : 0);
  return lanes.sort((one, other) => size(other) - size(one) || laneKey(one).localeCompare(laneKey(other)));
}
