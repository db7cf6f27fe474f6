/** The shards of a run that the service knows: read, drawn as squares, and placed on the map. */

import { api, at } from "../lib/api.js";
import { h, keyed } from "../lib/dom.js";
import { counted, percent, whole } from "../lib/format.js";
import { meter } from "../components/gauge.js";
import { countryAt } from "../components/map.js";

const PAGE = 200;
export const SHARDS_MAX = 1_000;
const OPEN = ["waiting", "running"];

/** The colours of jobs mean the same here. @type {Record<string, string>} */
export const TONES = { waiting: "none", running: "leased", done: "done", split: "done", parked: "failed" };

/** @param {string} source @param {string} run @param {AbortSignal} signal @returns {Promise<any[]>} the first of them */
export async function readShards(source, run, signal) {
  /** @type {any[]} */
  const shards = [];
  /** @type {string | null} */
  let cursor = null;
  do {
    /** @type {any} */
    const answer = await api.get(`/imports${at(source, "runs", run, "shards")}`, { limit: PAGE, cursor }, { signal });
    shards.push(...answer.items);
    cursor = answer.next;
  } while (cursor && shards.length < SHARDS_MAX);
  return shards;
}

/** 0 to 1; null: nothing says how much of it there is. @param {any} shard @returns {number | null} */
export function shareIn(shard) {
  if (!OPEN.includes(shard.state)) return 1;
  if (shard.estimated_rows) return Math.min(1, shard.rows / shard.estimated_rows);
  const [low, high] = shard.predicate.id ?? [null, null];
  const after = shard.cursor?.after;
  if (typeof low !== "number" || typeof high !== "number") return shard.state === "waiting" ? 0 : null;
  return typeof after === "number" ? Math.max(0, Math.min(1, (after + 1 - low) / (high - low))) : 0;
}

/** @param {any} shard */
export function wordsOf(shard) {
  const share = shareIn(shard);
  const far = shard.state === "running" && share != null ? `, ${percent(share)}` : "";
  return `${shard.label}: ${shard.state}, ${counted(shard.rows, "row")}${far}${shard.why ? `; ${shard.why}` : ""}`;
}

/** One square per shard, in the order of the plan; children follow their parent.
 * @param {HTMLElement} grid @param {any[]} shards */
export function drawShards(grid, shards) {
  keyed(grid, shards, (shard) => shard.key, () => h("li.shard"), (cell, shard) => {
    cell.dataset.tone = TONES[shard.state] ?? "none";
    cell.style.setProperty("--share", `${Math.round((shareIn(shard) ?? 0.5) * 100)}%`);
    cell.classList.toggle("part", shard.state === "running");
    const words = wordsOf(shard);
    if (cell.title === words) return;
    cell.title = words;
    cell.replaceChildren(h("span.sr", words));
  });
}

/** Those that say where they are: boxes, and countries. @param {any[]} shards */
export function areasOf(shards) {
  return shards.flatMap(placesOf);
}

/** @param {any} shard @returns {import("../components/map.js").Area[]} */
function placesOf(shard) {
  const about = { tone: TONES[shard.state] ?? "none", title: wordsOf(shard), isOpen: shard.state === "running" };
  const { box, country } = shard.predicate;
  // A split shard is replaced by its children.
  if (Array.isArray(box)) return shard.state === "split" ? [] : [{ key: shard.key, box: /** @type {any} */ (box), ...about }];
  return (Array.isArray(country) ? country.map(String) : []).flatMap((code) => {
    const place = countryAt(code);
    return place ? [{ key: `${shard.key} ${code}`, at: place, ...about }] : [];
  });
}

/** @param {any} shard */
export function progressIn(shard) {
  const share = shareIn(shard);
  const words = shard.estimated_rows ? `${whole(shard.rows)} of ${whole(shard.estimated_rows)} rows` : counted(shard.rows, "row");
  const said = share == null || shard.estimated_rows ? words : `${words}, ${percent(share)}`;
  return h("span.shard-progress", share != null && meter(share, shard.label, "leased"), h("small", said));
}
