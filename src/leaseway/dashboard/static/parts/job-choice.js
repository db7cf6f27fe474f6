/** The selected jobs, and the actions for them. */

import { attribute, fill, h, text } from "../lib/dom.js";
import { may } from "../lib/api.js";
import { counted, whole } from "../lib/format.js";
import { icon } from "../components/icons.js";
import { changeMatching, changeNamed, fits, VERBS } from "./job-changes.js";

export class JobChoice {
  /** @type {Set<string>} */
  ids = new Set();
  /** Also jobs that are not shown. */
  isEverything = false;
  #last = "";
  #all = h("input", { type: "checkbox", "aria-label": "Select all shown jobs" });
  #words = h("span.choice-words", { role: "status" });
  #further = h("button.quiet", { type: "button" });
  #buttons = h("span.choice-actions");

  /** @param {{shown: () => any[], hasMore: () => boolean, filter: () => Record<string, string>, changed: () => void, done: () => void}} page */
  constructor(page) {
    this.page = page;
    this.#all.addEventListener("click", () => this.#chooseAll(this.#all.checked));
    this.#further.addEventListener("click", () => ((this.isEverything = true), page.changed()));
    this.element = h("div.choice", h("label.choice-all", this.#all, this.#words), this.#further, may("jobs:write") && this.#buttons);
  }

  /** @param {any} job */
  has(job) {
    return this.ids.has(job.id);
  }

  get isEmpty() {
    return this.ids.size === 0;
  }

  clear() {
    this.ids.clear();
    this.isEverything = false;
  }

  /** With shift, from the last one to this one. @param {any} job @param {boolean} isOn @param {boolean} isRange */
  choose(job, isOn, isRange) {
    const shown = this.page.shown().map((each) => each.id);
    const [from, to] = [shown.indexOf(this.#last), shown.indexOf(job.id)].sort((one, other) => one - other);
    const meant = isRange && from >= 0 ? shown.slice(from, to + 1) : [job.id];
    for (const id of meant) isOn ? this.ids.add(id) : this.ids.delete(id);
    this.#last = job.id;
    this.isEverything = false;
    this.page.changed();
  }

  /** @param {boolean} isOn */
  #chooseAll(isOn) {
    this.clear();
    if (isOn) for (const job of this.page.shown()) this.ids.add(job.id);
    this.page.changed();
  }

  draw() {
    const shown = this.page.shown();
    const known = new Set(shown.map((job) => job.id));
    for (const id of this.ids) if (!known.has(id)) this.ids.delete(id);
    const isAll = shown.length > 0 && this.ids.size === shown.length;
    this.#all.checked = isAll;
    this.#all.indeterminate = !this.isEmpty && !isAll;
    text(this.#words, this.isEverything ? "All matching jobs are selected" : this.isEmpty ? `${counted(shown.length, "job")} shown` : `${whole(this.ids.size)} selected`);
    this.#further.hidden = !isAll || this.isEverything || !this.page.hasMore();
    text(this.#further, "Select all matching jobs");
    this.#drawButtons(shown.filter((job) => this.ids.has(job.id)));
  }

  /** @param {any[]} chosen */
  #drawButtons(chosen) {
    const state = this.page.filter().state;
    const buttons = Object.values(VERBS).map((verb) => {
      const count = chosen.filter((job) => fits(verb, job)).length;
      const isPossible = this.isEverything ? !state || verb.states.includes(state) : count > 0;
      const label = this.isEverything ? `${verb.label} all` : count ? `${verb.label} ${whole(count)}` : verb.label;
      return { verb, label, isPossible };
    });
    const version = JSON.stringify(buttons.map(({ label, isPossible }) => [label, isPossible]));
    if (this.#buttons.dataset.version === version) return;
    attribute(this.#buttons, "data-version", version);
    fill(this.#buttons, buttons.map(({ verb, label, isPossible }) =>
      h("button", { type: "button", class: verb.danger ? "danger" : "", disabled: !isPossible, on: { click: () => this.#act(verb) } }, icon(verb.icon), label)));
  }

  /** @param {import("./job-changes.js").Verb} verb */
  async #act(verb) {
    const { state, ...rest } = this.page.filter();
    const filter = { ...rest, states: state ? [state] : verb.states };
    const what = Object.entries({ ...(state && { state }), ...rest }).map(([name, value]) => `${name} ${value}`).join(", ") || `all ${verb.states.join(", ")} jobs`;
    const chosen = this.page.shown().filter((job) => this.ids.has(job.id));
    const isDone = await (this.isEverything ? changeMatching(verb, filter, what) : changeNamed(verb, chosen));
    if (!isDone) return;
    this.clear();
    this.page.done();
  }
}
