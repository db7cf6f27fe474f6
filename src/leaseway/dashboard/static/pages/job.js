/** One job: state, explanation, timeline, errors, arguments and result. */

import { ApiProblem, api, at, isLeft, may } from "../lib/api.js";
import { fill, find, h, text } from "../lib/dom.js";
import { counted } from "../lib/format.js";
import { Page, useStyles } from "../lib/page.js";
import { go } from "../lib/router.js";
import { world } from "../lib/store.js";
import { card } from "../components/card.js";
import { chip, setChip } from "../components/chip.js";
import { copyButton } from "../components/copy.js";
import { factsOf as listOf } from "../components/dialog.js";
import { problemBox, waiting } from "../components/empty.js";
import { icon } from "../components/icons.js";
import { jsonBlock } from "../components/json.js";
import { changeOne, fits, VERBS } from "../parts/job-changes.js";
import { drawErrors, factsOf, lifeOf, progressOf, whyOf } from "../parts/job-parts.js";
import { stateOf } from "../parts/jobs-table.js";

useStyles(import.meta.url, "../styles/jobs.css");

const OPEN_SECONDS = 2;
const FINAL_SECONDS = 20;
const SOON_MS = 150;
const FINAL = ["done", "failed", "cancelled"];
/** What is stored with it, if there is any. @type {[string, string][]} */
const VALUES = [["progress", "Progress"], ["payload", "Arguments"], ["result", "Result"], ["cursor", "Cursor"]];

export default class JobPage extends Page {
  static title = "Job";
  /** @type {any} */
  job = null;
  lookedAt = 0;
  chip = chip("pending");
  actions = h("div.actions");
  why = h("div.why");
  facts = h("div");
  life = h("div");
  errors = h("ul.errors");
  errorCard = card("Failed attempts", { flush: true }, this.errors);
  values = VALUES.map(([name, label]) => {
    const box = h("div");
    return { name, box, frame: card(label, {}, box) };
  });
  #soon = 0;
  /** What each part was drawn from: only what changed is drawn again, so that what is unfolded stays so. @type {Map<Element, string>} */
  #drawn = new Map();

  async open() {
    fill(this, this.heading("Job"), h("div.card", waiting(6)));
    if (await this.look()) this.listen();
  }

  listen() {
    world.follow([this.params.id]);
    this.signal.addEventListener("abort", () => world.follow([]));
    this.when("job", (news) => news.id === this.params.id && this.soon());
    this.when("tick", () => this.tick());
  }

  /** Many events within a moment cause one request. */
  soon() {
    this.#soon ||= setTimeout(() => ((this.#soon = 0), this.look()), SOON_MS);
  }

  tick() {
    setChip(this.chip, stateOf(this.job));
    const seconds = FINAL.includes(this.job.state) ? FINAL_SECONDS : OPEN_SECONDS;
    if (!document.hidden && Date.now() - this.lookedAt >= seconds * 1_000) this.look();
  }

  /** @returns {Promise<boolean>} whether there is such a job */
  async look() {
    this.lookedAt = Date.now();
    try {
      const path = at("jobs", this.params.id);
      const [job, why] = await Promise.all([api.get(path, {}, this), api.get(`${path}/why`, {}, this)]);
      this.draw(job, why);
      return true;
    } catch (error) {
      if (error instanceof ApiProblem && error.status === 404) this.miss(error);
      else if (this.job) this.stumble(error);
      else if (!isLeft(error)) throw error;
      return false;
    }
  }

  /** @param {ApiProblem} error */
  miss(error) {
    const back = h("a", { href: "#/jobs" }, "All jobs");
    fill(this, this.heading("Job"), h("div.card", problemBox("There is no such job", error.message, back)));
  }

  // -- rendering ------------------------------------------------------------------------------------------------------

  /** @param {any} job @param {any} why */
  draw(job, why) {
    if (!this.job) this.build(job);
    this.job = job;
    setChip(this.chip, stateOf(job));
    this.piece(this.actions, [job.state, job.cancel_requested], () => this.actionsOf(job));
    this.piece(this.why, why, () => whyOf(why, job));
    this.piece(this.facts, job, () => listOf(factsOf(job)));
    this.piece(this.life, job.timeline, () => lifeOf(job));
    this.errorCard.hidden = !job.errors.length;
    text(find("h2", this.errorCard), counted(job.errors.length, "failed attempt"));
    drawErrors(this.errors, job.errors);
    for (const value of this.values) this.drawValue(value, job[value.name]);
  }

  /** @param {any} job */
  build(job) {
    const side = h("div.job-side", card("Timeline", {}, this.life), card("Facts", {}, this.facts));
    const body = h("div.job-body", card("Why", {}, this.why), this.errorCard, this.values.map(({ frame }) => frame));
    fill(this, this.head(job), h("div.job", body, side));
  }

  /** @param {any} job */
  head(job) {
    const title = h("h1", { tabindex: "-1" }, job.kind);
    const id = h("span.job-id", h("span.mono", job.id), copyButton(job.id, "Copy the id"));
    const back = h("a.back", { href: "#/jobs" }, icon("left"), "Jobs");
    return h("header.job-head", back, h("div.page-head", h("div.job-title", title, this.chip), this.actions), id);
  }

  /** @param {any} job */
  actionsOf(job) {
    if (!may("jobs:write")) return null;
    return Object.values(VERBS).filter((verb) => fits(verb, job)).map((verb) =>
      h("button", { type: "button", class: verb.danger ? "danger" : "", on: { click: () => this.act(verb) } }, icon(verb.icon), verb.label));
  }

  /** @param {import("../parts/job-changes.js").Verb} verb */
  async act(verb) {
    if (!(await changeOne(verb, this.job))) return;
    if (verb.name === "discard") go("/jobs");
    else await this.look();
  }

  /** @param {{name: string, box: HTMLElement, frame: HTMLElement}} place @param {any} value */
  drawValue({ name, box, frame }, value) {
    frame.hidden = value == null && name !== "payload";
    if (frame.hidden) return;
    this.piece(box, [value], () => (name === "progress" ? progressOf(value) : jsonBlock(value, name)));
  }

  /** @param {Element} element @param {any} from @param {() => any} make */
  piece(element, from, make) {
    const version = JSON.stringify(from);
    if (this.#drawn.get(element) === version) return;
    this.#drawn.set(element, version);
    fill(element, make());
  }
}
