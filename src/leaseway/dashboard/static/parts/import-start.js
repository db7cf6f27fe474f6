/** Starts and resumes runs, after a confirmation that shows what the run will take. */

import { api, at } from "../lib/api.js";
import { counted, money, span, whole } from "../lib/format.js";
import { link } from "../lib/router.js";
import { confirmed, filledIn } from "../components/dialog.js";
import { toast } from "../components/toast.js";

/** @type {[string, string][]} */
const MODES = [
  ["", "automatic, based on previous runs"],
  ["full", "everything"],
  ["incremental", "changes only"],
];

/** Asks, starts, and goes there. @param {{source: string, spec: string, table: string}} known */
export async function startRun({ source, table }) {
  const path = `/imports${at(source)}`;
  const plan = await api.post(`${path}/plan`, {}).catch(() => null); // errors are shown when the run is started
  const row = await filledIn({
    title: `Import ${source}`,
    text: plan ? planned(plan, table) : `Rows go to the table ${table}.`,
    action: "Start",
    fields: [
      { name: "run", label: "Name of the run", placeholder: "generated", pattern: "[A-Za-z0-9._\\-]{1,60}", hint: "Letters, digits, . _ and -; optional." },
      { name: "mode", label: "What to read", value: "", options: MODES },
      { name: "requests_max", label: "Maximum number of requests", inputmode: "numeric", pattern: "[0-9]+", placeholder: plan?.requests_max ? whole(plan.requests_max) : "unlimited" },
    ],
    submit: (values) => api.post(`${path}/runs`, bodyOf(values)),
  });
  if (!row) return;
  toast(`${source}: run ${row.run} has started`);
  location.hash = link(`/imports${at(source, row.run)}`);
}

const NUMBER = "[0-9]+(\\.[0-9]+)?";
const SIMULATION_SECONDS = 70;

/** Simulates a run for several numbers of workers, and shows what each would take. @param {{source: string}} known
 * @returns {Promise<boolean>} whether a run is to be started */
export async function planRun({ source }) {
  const found = await filledIn({
    title: `Plan ${source}`,
    text: "The plan of a run in virtual time: the real workers and limits, and a model of the provider. Nothing is written.",
    action: "Simulate",
    keep: "Close",
    fields: [
      { name: "seconds", label: "Median time of a request, in seconds", inputmode: "decimal", pattern: NUMBER, required: true, value: "0.2" },
      { name: "p95_seconds", label: "95th percentile, in seconds", inputmode: "decimal", pattern: NUMBER, placeholder: "the same" },
      { name: "rows", label: "Rows", inputmode: "numeric", pattern: "[0-9]+", placeholder: "as the source reports" },
    ],
    submit: (values) => api.post(`/imports${at(source)}/simulate`, modelOf(values), { seconds: SIMULATION_SECONDS }),
  });
  if (!found) return false;
  const facts = found.runs.map((/** @type {any} */ run) => [counted(run.workers, "worker"), takes(run)]);
  return confirmed({ title: `Plan of ${source}`, text: found.reason, facts, action: "Start a run", keep: "Close" });
}

/** @param {Record<string, string>} values */
function modelOf({ seconds, p95_seconds, rows }) {
  return { seconds: Number(seconds), p95_seconds: p95_seconds ? Number(p95_seconds) : null, rows: rows ? Number(rows) : null };
}

/** "2 min 3 s, 1,036 requests, 2.50 usd" @param {any} run */
function takes(run) {
  /** @type {string[]} */
  const amounts = Object.values(run.costs);
  const costs = amounts.filter((text) => !text.startsWith("0.00"));
  const parts = [span(run.seconds), counted(run.requests, "request"), ...costs];
  return run.is_complete ? parts.join(", ") : `more than ${parts.join(", ")}`;
}

/** @param {Record<string, string>} values */
function bodyOf({ run, mode, requests_max }) {
  return { run: run || null, mode: mode || null, requests_max: requests_max ? Number(requests_max) : null };
}

/** "Everything: 48 shards, about 235,000 rows in at least 1,036 requests, 21 s or more. Rows go to the table poi."
 * @param {any} plan @param {string} table */
function planned(plan, table) {
  const what = plan.mode === "full" ? "Everything" : "Changes only";
  const rows = plan.rows == null ? "" : `, ${plan.is_most ? "at most" : "about"} ${counted(plan.rows, "row")}`;
  const requests = plan.requests == null ? "" : ` in ${counted(plan.requests, "request")} or more`;
  const time = plan.seconds == null ? "" : `, duration ${span(plan.seconds)}`;
  const cost = plan.cost == null ? "" : `, about ${money(plan.cost, plan.currency ?? "usd")}`;
  const over = plan.is_over_budget ? ` That exceeds its budget of ${counted(plan.requests_max, "request")}.` : "";
  return `${what}: ${counted(plan.shards_total, "shard")}${rows}${requests}${time}${cost}.${over} Rows go to the table ${table}.`;
}

/** @param {string} source @param {any} progress @returns {Promise<boolean>} whether it goes on */
export async function resumeRun(source, progress) {
  const used = progress.budget && progress.budget.left === 0;
  const path = `/imports${at(source, "runs", progress.run)}/resume`;
  const title = `Resume ${progress.run}`;
  const text = "Unfinished and parked shards are tried again; each continues after its last page.";
  if (used) {
    const field = { name: "requests_max", label: "Maximum number of requests", inputmode: "numeric", pattern: "[0-9]+", required: true, value: String(2 * progress.budget.requests), hint: `The run has used its budget of ${whole(progress.budget.requests)}.` };
    const done = await filledIn({ title, text, action: "Resume", fields: [field], submit: (values) => api.post(path, { requests_max: Number(values.requests_max) }) });
    return done != null;
  }
  if (!(await confirmed({ title, text, action: "Resume" }))) return false;
  const { shards_open: open } = await api.post(path);
  toast(`${progress.run} resumed: ${counted(open, "shard")} open`);
  return true;
}
