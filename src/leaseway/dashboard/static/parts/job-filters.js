/** The filter of jobs: state, kind, queue, tenant and error; and a field to open a job by its id. */

import { may } from "../lib/api.js";
import { attribute, fill, h, newId, text } from "../lib/dom.js";
import { short } from "../lib/format.js";
import { go } from "../lib/router.js";
import { world } from "../lib/store.js";
import { icon } from "../components/icons.js";

const STATES = ["", "pending", "leased", "done", "failed", "cancelled"];
const FIELDS = ["kind", "queue", "tenant", "error_code"];
/** @type {Record<string, string>} */
const LABELS = { kind: "Kind", queue: "Queue", tenant: "Tenant", error_code: "Error" };
const ID = /^[0-9a-z]{26}$/;
const WAIT_MS = 350;
const CHOICES_MAX = 200;

/** @typedef {Record<string, string>} Chosen by name of the field; what is not chosen is not there */

/** @param {URLSearchParams} query @returns {Chosen} */
export function chosenIn(query) {
  const names = ["state", ...FIELDS];
  return Object.fromEntries(names.map((name) => [name, query.get(name) ?? ""]).filter(([, value]) => value));
}

export class JobFilters {
  /** @type {Map<string, any>} */
  #tabs = new Map();
  /** @type {Map<string, any>} */
  #fields = new Map();
  /** @type {Map<string, any>} */
  #lists = new Map();
  /** Seen in the jobs themselves. @type {Map<string, Set<string>>} */
  #seen = new Map(FIELDS.map((name) => [name, new Set()]));
  #later = 0;
  #trouble = h("span.wrong", { role: "alert" });

  /** @param {Chosen} chosen @param {(chosen: Chosen) => void} changed */
  constructor(chosen, changed) {
    this.chosen = chosen;
    this.changed = changed;
    this.clear = h("button.quiet", { type: "button", on: { click: () => this.#take({}) } }, "Clear");
    const names = FIELDS.filter((name) => name !== "tenant" || may("operate"));
    this.element = h("div.filters", this.#stateTabs(), h("div.filter-fields", this.#search(), names.map((name) => this.#field(name)), this.clear), this.#trouble);
    this.draw();
  }

  #stateTabs() {
    for (const state of STATES) {
      const count = h("span.tab-count");
      const click = () => this.#take({ ...this.#others(), ...(state && { state }) });
      this.#tabs.set(state, { tab: h("button.tab", { type: "button", on: { click } }, state || "all", count), count });
    }
    return h("div.tabs", { role: "group", "aria-label": "State" }, [...this.#tabs.values()].map(({ tab }) => tab));
  }

  #search() {
    const input = h("input", { type: "search", placeholder: "Job id", "aria-label": "Open a job by its id", autocomplete: "off", spellcheck: "false", data: { search: "" } });
    input.addEventListener("input", () => text(this.#trouble, ""));
    input.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => event.key === "Enter" && this.#open(input.value));
    input.addEventListener("paste", () => setTimeout(() => isId(input.value) && this.#open(input.value)));
    return h("div.search", icon("search"), input);
  }

  /** @param {string} given */
  #open(given) {
    const id = given.trim().toLowerCase();
    if (isId(id)) go(`/jobs/${id}`);
    else if (id) text(this.#trouble, `A job’s id has 26 letters and digits; ${given.trim().slice(0, 40)} has ${given.trim().length}. Use the other fields for kinds and queues.`);
  }

  /** @param {string} name */
  #field(name) {
    const list = h("datalist", { id: newId("choices") });
    const input = h("input", { name, list: list.id, placeholder: `any ${LABELS[name].toLowerCase()}`, "aria-label": LABELS[name], autocomplete: "off", spellcheck: "false" });
    const take = () => this.#take({ ...this.chosen, [name]: input.value.trim() });
    input.addEventListener("focus", () => this.#offer(name));
    input.addEventListener("input", () => (clearTimeout(this.#later), (this.#later = setTimeout(take, WAIT_MS))));
    input.addEventListener("change", () => (clearTimeout(this.#later), take()));
    this.#fields.set(name, input);
    this.#lists.set(name, list);
    return h("div.filter", input, list);
  }

  #others() {
    const { state: _, ...others } = this.chosen;
    return others;
  }

  /** @param {Chosen} chosen */
  #take(chosen) {
    const given = Object.fromEntries(Object.entries(chosen).filter(([, value]) => value));
    if (JSON.stringify(given) === JSON.stringify(this.chosen)) return;
    this.show(given);
    this.changed(given);
  }

  /** @param {Chosen} chosen */
  show(chosen) {
    this.chosen = chosen;
    text(this.#trouble, "");
    this.draw();
  }

  draw() {
    const isPlain = !FIELDS.some((name) => this.chosen[name]);
    const totals = /** @type {any} */ (world.totals);
    for (const [state, { tab, count }] of this.#tabs) {
      attribute(tab, "aria-pressed", (this.chosen.state ?? "") === state ? "true" : "false");
      // There are no counts by kind or error.
      text(count, isPlain && state && totals ? short(totals[state], 10_000) : "");
    }
    for (const [name, input] of this.#fields) if (document.activeElement !== input) input.value = this.chosen[name] ?? "";
    this.clear.hidden = Object.keys(this.chosen).length === 0;
  }

  /** What there is to choose from, as far as it is known here. @param {any[]} jobs */
  saw(jobs) {
    for (const job of jobs) {
      this.#see("kind", job.kind);
      this.#see("error_code", job.last_error_code);
    }
  }

  /** @param {string} name @param {string | null} value */
  #see(name, value) {
    const seen = /** @type {Set<string>} */ (this.#seen.get(name));
    if (value && seen.size < CHOICES_MAX) seen.add(value);
  }

  /** @param {string} name */
  #offer(name) {
    if (name === "queue" || name === "tenant") for (const lane of world.lanes.values()) this.#see(name, lane[name]);
    const values = [...(this.#seen.get(name) ?? [])].sort();
    fill(this.#lists.get(name), values.map((value) => h("option", { value })));
  }
}

/** @param {string} given */
function isId(given) {
  return ID.test(given.trim().toLowerCase());
}
