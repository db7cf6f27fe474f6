/** Jobs, newest first: filter, open, and change many at once. New jobs appear at the top. */

import { api, isLeft, may, said } from "../lib/api.js";
import { fill, find, h, text } from "../lib/dom.js";
import { counted } from "../lib/format.js";
import { Page, useStyles } from "../lib/page.js";
import { amend } from "../lib/router.js";
import { world } from "../lib/store.js";
import { empty, problemBox, waiting } from "../components/empty.js";
import { icon } from "../components/icons.js";
import { submitting } from "../parts/first-job.js";
import { JobChoice } from "../parts/job-choice.js";
import { chosenIn, JobFilters } from "../parts/job-filters.js";
import { jobsTable } from "../parts/jobs-table.js";

useStyles(import.meta.url, "../styles/jobs.css");

const ROWS = 50;
/** How many search requests one page makes before it asks the user to continue. */
const LOOKS_MAX = 500;
const ARRIVED_MAX = 1_000;
const LOOK_SECONDS = 3;
const LIVE_LOOK_SECONDS = 15;
const TOP_PX = 80;
const FINAL = ["done", "failed", "cancelled"];
const FRESH_MS = 1_500;

export default class Jobs extends Page {
  static title = "Jobs";
  /** As shown, the newest first. @type {any[]} */
  jobs = [];
  /** New jobs that are held back, so that rows do not move under the pointer. @type {Map<string, any>} */
  arrived = new Map();
  /** Of the pages before this one; the first has none. @type {(string | null)[]} */
  cursors = [null];
  /** @type {string | null} */
  next = null;
  isKnown = false;
  isSeeking = false;
  isDue = false;
  lookedAt = 0;
  turn = 0;
  followed = "";

  filters = new JobFilters({}, (chosen) => (amend(chosen), this.restart()));
  choice = new JobChoice({
    shown: () => this.jobs,
    hasMore: () => this.next != null || !this.isFirst,
    filter: () => this.filters.chosen,
    changed: () => this.draw(),
    done: () => this.restart(),
  });
  table = jobsTable({ isChosen: (job) => this.choice.has(job), choose: (...given) => this.choice.choose(...given), withTenant: may("operate") });
  box = h("div", waiting(8));
  news = h("button.news", { type: "button", hidden: true, on: { click: () => this.showNews() } });
  newer = h("button", { type: "button", on: { click: () => this.turnPage(-1) } }, icon("left"), "Newer");
  older = h("button", { type: "button", on: { click: () => this.turnPage(1) } }, "Older", icon("right"));
  pageWords = h("span");
  foot = h("div.table-foot", this.newer, this.pageWords, this.older);

  open() {
    this.filters.show(chosenIn(this.query));
    fill(this, this.heading("Jobs"), this.filters.element, h("section.card", { "aria-label": "Jobs" }, this.choice.element, this.news, this.box, this.foot));
    if (this.query.get("search")) find("[data-search]", this).focus();
    this.choice.element.hidden = this.foot.hidden = true;
    this.when("job", (job) => this.hear(job));
    this.when("totals", () => this.filters.draw());
    this.when("tick", () => this.tick());
    this.signal.addEventListener("abort", () => world.follow([]));
    return this.look();
  }

  /** @param {URLSearchParams} query */
  moved(query) {
    super.moved(query);
    this.filters.show(chosenIn(query));
    this.restart();
    if (query.get("search")) find("[data-search]", this).focus();
  }

  restart() {
    this.cursors = [null];
    this.arrived.clear();
    this.choice.clear();
    return this.look();
  }

  /** @param {number} by */
  turnPage(by) {
    if (by > 0 && this.next) this.cursors.push(this.next);
    else if (by < 0 && this.cursors.length > 1) this.cursors.pop();
    this.choice.clear();
    this.arrived.clear();
    return this.look().then(() => this.scrollIntoView({ block: "start" }));
  }

  get isFirst() {
    return this.cursors.length === 1;
  }

  // -- requests -------------------------------------------------------------------------------------------------------

  /** Replaces the shown page by its present contents. */
  async look() {
    const turn = (this.turn += 1);
    try {
      const answer = await this.ask();
      if (turn !== this.turn) return; // the user has changed the filter meanwhile
      this.jobs = answer.items;
      this.next = answer.next;
      this.isKnown = true;
      this.filters.saw(this.jobs);
      await this.seekOn(turn);
    } catch (error) {
      if (!isLeft(error) && turn === this.turn) this.refuse(error);
    } finally {
      if (turn === this.turn) this.isSeeking = false;
    }
  }

  /** One look of the service ends after so many jobs: what is rare may lie further back. @param {number} turn */
  async seekOn(turn) {
    for (let looks = 1; this.next && this.jobs.length < ROWS && looks < LOOKS_MAX; looks += 1) {
      this.isSeeking = true;
      this.draw();
      const answer = await this.ask(this.next, ROWS - this.jobs.length);
      if (turn !== this.turn) return;
      this.jobs = [...this.jobs, ...answer.items];
      this.next = answer.next;
      this.filters.saw(answer.items);
    }
    this.isSeeking = false;
    this.draw();
  }

  /** @param {string | null} [cursor] @param {number} [limit] */
  ask(cursor = this.cursors.at(-1), limit = ROWS) {
    this.lookedAt = Date.now();
    return api.get("/jobs", { ...this.filters.chosen, limit, cursor }, { signal: this.signal });
  }

  /** @param {unknown} error */
  refuse(error) {
    this.jobs = [];
    this.isKnown = false;
    this.next = null;
    this.draw();
    fill(this.box, problemBox("These jobs cannot be shown", said(error)));
  }

  tick() {
    this.draw();
    const seconds = ["live", "stream"].includes(world.way) ? LIVE_LOOK_SECONDS : LOOK_SECONDS;
    if (!document.hidden && !this.isSeeking && Date.now() - this.lookedAt >= seconds * 1_000) this.compare();
  }

  /** Polls for changes that the stream did not deliver. */
  async compare() {
    const turn = this.turn;
    try {
      const { items, next } = await this.ask();
      if (turn !== this.turn) return;
      this.isKnown = true;
      this.filters.saw(items);
      const isWhole = !next || items.length >= ROWS; // otherwise older jobs are missing
      if (isWhole && this.isQuiet()) [this.jobs, this.next] = [this.marked(items), next];
      else for (const job of items) this.hear(job);
      this.draw();
    } catch (error) {
      this.stumble(error);
    }
  }

  // -- events ---------------------------------------------------------------------------------------------------------

  /** News say less than an answer does: what they leave out stays. @param {any} news */
  hear(news) {
    const at = this.jobs.findIndex((job) => job.id === news.id);
    if (at >= 0) {
      this.jobs[at] = { ...this.jobs[at], ...news };
      this.drawSoon();
    } else if (this.arrived.has(news.id)) this.arrived.set(news.id, { ...this.arrived.get(news.id), ...news });
    else if (this.isNew(news)) this.arrived.set(news.id, news);
    if (this.arrived.size && this.isQuiet()) this.showNews();
  }

  /** @param {any} job */
  isNew(job) {
    const isWanted = Object.entries(this.filters.chosen).every(([name, value]) => job[name === "error_code" ? "last_error_code" : name] === value);
    const isNewer = !this.jobs.length || job.id > this.jobs[0].id;
    return this.isFirst && this.isKnown && isWanted && isNewer && !job.gone && this.arrived.size < ARRIVED_MAX;
  }

  /** The user has not scrolled down, selected jobs, or focused a row. */
  isQuiet() {
    const isOnRow = this.box.contains(document.activeElement) || this.box.matches(":hover");
    return this.isFirst && scrollY < TOP_PX && this.choice.isEmpty && !isOnRow;
  }

  showNews() {
    const fresh = [...this.arrived.values()].sort((one, other) => (one.id < other.id ? 1 : -1));
    this.arrived.clear();
    const all = this.marked([...fresh, ...this.jobs]);
    if (all.length > ROWS) this.lookedAt = 0; // the start of the next page is known after the next poll
    this.jobs = all.slice(0, ROWS);
    this.draw();
  }

  /** Those that were not there are lit for a moment. @param {any[]} jobs */
  marked(jobs) {
    const known = new Set(this.jobs.map((job) => job.id));
    const fresh = new Set(jobs.filter((job) => !known.has(job.id)).map((job) => job.id));
    if (fresh.size) requestAnimationFrame(() => this.light(fresh));
    return jobs;
  }

  /** @param {Set<string>} ids */
  light(ids) {
    /** @type {any[]} */
    const rows = [...this.querySelectorAll("tr[data-row]")].filter((/** @type {any} */ row) => ids.has(row.dataset.row));
    for (const row of rows) row.classList.add("fresh");
    setTimeout(() => rows.forEach((row) => row.classList.remove("fresh")), FRESH_MS);
  }

  // -- rendering ------------------------------------------------------------------------------------------------------

  /** At most once per animation frame, however many events arrive. */
  drawSoon() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      if (!this.signal.aborted) this.draw();
    });
  }

  draw() {
    this.jobs = this.jobs.filter((job) => !job.gone);
    this.choice.draw();
    this.choice.element.hidden = !this.jobs.length;
    this.news.hidden = !this.arrived.size;
    text(this.news, `Show ${counted(this.arrived.size, "new job")}`);
    this.foot.hidden = this.isFirst && !this.next;
    this.newer.disabled = this.isFirst;
    this.older.disabled = !this.next;
    text(this.pageWords, this.isSeeking ? "Searching older jobs …" : `Page ${this.cursors.length}`);
    if (this.isKnown) this.drawRows();
    this.follow();
  }

  /** The stream may contain a sample only, so the shown unfinished jobs are followed. */
  follow() {
    const ids = this.jobs.filter((job) => !FINAL.includes(job.state)).map((job) => job.id);
    if (ids.join() === this.followed) return;
    this.followed = ids.join();
    world.follow(ids);
  }

  drawRows() {
    if (!this.jobs.length && this.isSeeking) {
      if (!this.box.querySelector(".waiting")) fill(this.box, waiting(8));
      return;
    }
    if (!this.jobs.length) {
      if (!this.box.querySelector(".empty:not(.problem)")) fill(this.box, this.nothing());
      return;
    }
    if (!this.table.isConnected) fill(this.box, this.table);
    this.table.show(this.jobs);
  }

  nothing() {
    if (Object.keys(this.filters.chosen).length) {
      const clear = h("button", { type: "button", on: { click: () => this.filters.clear.click() } }, "Show all jobs");
      return empty({ title: "No job matches", text: "Filters match whole names and are case-sensitive.", action: clear, icon: "search" });
    }
    return empty({ title: "No jobs yet", text: "Submit a job and it appears here:", command: submitting(), icon: "jobs" });
  }
}
