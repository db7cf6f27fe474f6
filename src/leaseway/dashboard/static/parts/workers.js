/** Workers by their heartbeats: which run, which are idle, which are lost. */

import { api } from "../lib/api.js";
import { attribute, fill, h, keyed, text } from "../lib/dom.js";
import { counted, whole } from "../lib/format.js";
import { empty, waiting } from "../components/empty.js";
import { since } from "../components/times.js";
import { toast, toastProblem } from "../components/toast.js";
import { world } from "../lib/store.js";

export const FIRST = "leaseway work mymodule:app";
const ROWS_MAX = 6;
const NAMES_MAX = 4;
const TONES = { running: "leased", idle: "", draining: "warn", lost: "bad" };
/** What needs attention comes first. */
const ORDER = ["lost", "draining", "running", "idle"];

/**
 * @typedef {{name: string, state: "running" | "idle" | "draining" | "lost", host: string, pid: number, version: string,
 *   tenant: string | null, queues: string[], kinds: string[], slots: number, used: number, since: string,
 *   leased: number, expired: number, seen_at: string, until: string | null}} Worker
 */

/** What needs attention first, then by name. @returns {Worker[]} */
export function workers() {
  /** @type {Worker[]} */
  const found = [...(world.workers ?? [])];
  const rank = (/** @type {Worker} */ worker) => ORDER.indexOf(worker.state);
  return found.sort((one, other) => rank(one) - rank(other) || one.name.localeCompare(other.name));
}

/** How many can run jobs. */
export function presentWorkers() {
  return workers().filter((worker) => worker.state !== "lost").length;
}

/** @param {Worker[]} found */
export function workersInWords(found) {
  const states = ORDER.map((state) => [state, found.filter((worker) => worker.state === state).length]);
  const parts = states.filter(([, count]) => count).map(([state, count]) => `${whole(Number(count))} ${state}`);
  return `${counted(found.length, "worker")}: ${parts.join(", ")}.`;
}

/** @param {Worker} worker */
export function stateChip(worker) {
  return h("span.chip", { data: { tone: TONES[worker.state] } }, worker.state);
}

/** @param {string[]} names */
export function someOf(names) {
  return names.slice(0, NAMES_MAX).join(", ") + (names.length > NAMES_MAX ? ` and ${names.length - NAMES_MAX} more` : "");
}

/** @param {Worker} worker */
export async function drain(worker) {
  const running = worker.used ? `It finishes the ${counted(worker.used, "job")} that it runs.` : "It runs no job now.";
  const title = `Drain worker ${worker.name}?`;
  const words = `It claims no more jobs and stops. ${running} A fleet or a service manager may start another one.`;
  const { confirmed } = await import("../components/dialog.js"); // not needed for the first paint
  if (!(await confirmed({ title, text: words, action: "Drain", keep: "Leave it running" }))) return;
  try {
    await api.post(`/workers/${encodeURIComponent(worker.name)}/drain`);
    toast(`Worker ${worker.name} drains`);
    world.ask("workers");
  } catch (error) {
    toastProblem(error, "Not drained");
  }
}

/** The short list of the overview. @param {HTMLElement} list */
export function workerList(list) {
  if (world.workers == null) return list.childElementCount || fill(list, h("li", waiting(3)));
  const found = workers();
  if (!found.length) {
    const words = world.totals?.ready
      ? "Jobs are ready, but no worker is running. Start one:"
      : "No worker is running. Start one:";
    return fill(list, h("li", empty({ title: "No workers", text: words, command: FIRST, icon: "workers" })));
  }
  if (!list.querySelector("[data-worker]")) fill(list);
  keyed(list, found.slice(0, ROWS_MAX), (worker) => worker.name, makeRow, updateRow);
}

/** @param {Worker} worker */
function makeRow(worker) {
  const name = h("span.name.mono", { title: worker.name }, worker.name);
  const about = h("div.row.about", h("span.kinds"), h("span.seen", { title: "Last seen" }));
  return h("li", { data: { worker: worker.name } }, h("div.grow", h("div.row", name, h("span.chip.state")), about));
}

/** @param {HTMLElement} row @param {Worker} worker */
function updateRow(row, worker) {
  const part = (/** @type {string} */ name) => /** @type {HTMLElement} */ (row.querySelector(name));
  attribute(part(".state"), "data-tone", TONES[worker.state]);
  text(part(".state"), worker.state);
  const slots = worker.slots ? `${whole(worker.used)} of ${counted(worker.slots, "slot")}` : "";
  text(part(".kinds"), worker.expired ? `${counted(worker.expired, "lease")} expired` : slots);
  part(".kinds").classList.toggle("bad", worker.expired > 0);
  if (row.dataset.at !== worker.seen_at) fill(part(".seen"), since(worker.seen_at));
  row.dataset.at = worker.seen_at;
}
