/** Retry, cancel, discard: confirmed with the number of jobs, and reported afterwards. */

import { api, at } from "../lib/api.js";
import { counted, whole } from "../lib/format.js";
import { confirmed } from "../components/dialog.js";
import { toast, toastProblem } from "../components/toast.js";

/** How many jobs one request changes; the service has the same limit. */
const STEP = 1_000;
/** How many requests one confirmation makes: jobs that fail again immediately must not be retried endlessly. */
const STEPS_MAX = 20;

/** @typedef {{states?: string[], kind?: string, queue?: string, tenant?: string, error_code?: string}} Filter */
/** @typedef {{name: string, past: string, label: string, icon: string, states: string[], text: string, danger: boolean}} Verb */

/** @type {Record<"retry" | "cancel" | "discard", Verb>} */
export const VERBS = {
  retry: { name: "retry", past: "retried", label: "Retry", icon: "retry", states: ["failed", "cancelled"], text: "Each job starts again with all its attempts, at its last checkpoint.", danger: false },
  cancel: { name: "cancel", past: "cancelled", label: "Cancel", icon: "close", states: ["pending", "leased"], text: "Pending jobs will not run. Running jobs are asked to stop and end as cancelled, unless they finish first.", danger: true },
  discard: { name: "discard", past: "discarded", label: "Discard", icon: "trash", states: ["done", "failed", "cancelled"], text: "They are deleted permanently, with their errors and results.", danger: true },
};

/** @param {Verb} verb @param {any} job */
export function fits(verb, job) {
  return verb.states.includes(job.state) && !(verb.name === "cancel" && job.cancel_requested);
}

/** These jobs. @param {Verb} verb @param {any[]} jobs @returns {Promise<boolean>} whether it was done */
export async function changeNamed(verb, jobs) {
  const fitting = jobs.filter((job) => fits(verb, job));
  if (!fitting.length) return false;
  const left = jobs.length - fitting.length;
  const facts = /** @type {[string, any][]} */ ([["Changed", counted(fitting.length, "job")]]);
  if (left) facts.push(["Left alone", `${whole(left)}, because only ${listed(verb.states)} jobs can be ${verb.past}`]);
  if (!(await isMeant(verb, counted(fitting.length, "job"), facts))) return false;
  return attempted(verb, async () => {
    const answer = await api.post(`/jobs/${verb.name}`, { ids: fitting.map((job) => job.id) });
    tell(verb, answer[verb.past], answer.refused?.length ? `; ${whole(answer.refused.length)} had changed meanwhile` : "");
  });
}

/** All jobs that match the filter. @param {Verb} verb @param {Filter} filter @param {string} what @returns {Promise<boolean>} */
export async function changeMatching(verb, filter, what) {
  return attempted(verb, async () => {
    const { matching, more } = await api.post(`/jobs/${verb.name}`, { filter });
    if (!matching) return toast(`None of ${what} can be ${verb.past} any more`);
    const count = `${more ? "at least " : ""}${counted(matching, "job")}`;
    const facts = /** @type {[string, any][]} */ ([["Which", what], ["How many", count]]);
    if (more) facts.push(["In steps of", `${whole(STEP)}, at most ${whole(STEP * STEPS_MAX)} for now`]);
    if (!(await isMeant(verb, count, facts))) return null;
    tell(verb, ...(await inSteps(verb, filter, matching)));
  });
}

/** @param {Verb} verb @param {Filter} filter @param {number} confirm @returns {Promise<[number, string]>} */
async function inSteps(verb, filter, confirm) {
  let sum = 0;
  for (let step = 0; step < STEPS_MAX; step += 1) {
    const answer = await api.post(`/jobs/${verb.name}`, { filter, confirm });
    sum += answer[verb.past];
    if (!answer.more || !answer[verb.past]) return [sum, ""];
  }
  return [sum, "; there are more"];
}

/** One job, from its own page. @param {Verb} verb @param {any} job @returns {Promise<boolean>} */
export async function changeOne(verb, job) {
  if (verb.danger && !(await isMeant(verb, `this ${job.kind}`, [["Job", job.id]]))) return false;
  return attempted(verb, async () => {
    if (verb.name === "discard") await api.delete(at("jobs", job.id));
    else await api.post(`${at("jobs", job.id)}/${verb.name}`);
    toast(verb.name === "cancel" && job.state === "leased" ? "Its worker is asked to stop" : `The job is ${verb.past}`);
  });
}

/** @param {Verb} verb @param {string} count @param {[string, any][]} facts */
function isMeant(verb, count, facts) {
  const action = `${verb.label} ${count.replace("at least ", "")}`;
  const keep = /\bjobs$/.test(count) ? "Keep them" : "Keep it";
  return confirmed({ title: `${verb.label} ${count}?`, text: verb.text, facts, action, keep, danger: verb.danger });
}

/** @param {Verb} verb @param {number} count @param {string} rest */
function tell(verb, count, rest) {
  toast(`${counted(count, "job")} ${verb.past}${rest}`);
}

/** @param {Verb} verb @param {() => Promise<any>} step null: they thought better of it */
async function attempted(verb, step) {
  try {
    return (await step()) !== null;
  } catch (error) {
    toastProblem(error, `Not ${verb.past}`);
    return false;
  }
}

/** @param {string[]} words */
function listed(words) {
  return words.length > 1 ? `${words.slice(0, -1).join(", ")} and ${words.at(-1)}` : words[0];
}
