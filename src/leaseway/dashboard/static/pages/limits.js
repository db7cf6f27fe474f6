/** Limits: what providers permit, how much is in use, and how to change it. */

import { api, at, may } from "../lib/api.js";
import { fill, h, keyed, text } from "../lib/dom.js";
import { whole } from "../lib/format.js";
import { Page } from "../lib/page.js";
import { world } from "../lib/store.js";
import { confirmed, filledIn, fromTo } from "../components/dialog.js";
import { note } from "../components/chip.js";
import { empty, waiting } from "../components/empty.js";
import { gauge } from "../components/gauge.js";
import { icon } from "../components/icons.js";
import { toast, toastProblem } from "../components/toast.js";
import { alarmOf, FIRST, isOfTenant, ratesOf, troubleOf, usesOf } from "../parts/limits.js";
import { bodyOf, fieldsOf, rateTexts } from "../parts/limit-form.js";
import { drawPaused, pauseButton, switchPause } from "../parts/pauses.js";

export default class Limits extends Page {
  static title = "Limits";
  boards = h("div.boards");
  box = h("div", h("div.card", waiting(4)));

  open() {
    const add =
      may("operate") &&
      h("button.primary", { type: "button", on: { click: () => this.edit(null) } }, icon("plus"), "New limit");
    const lead = h(
      "p.lead",
      "A provider’s rate as the provider states it. All workers share it, and no window exceeds it.",
    );
    fill(this, this.heading("Limits", add), lead, this.box);
    this.when("limits", () => this.draw());
    this.draw();
    this.every(2, () => world.isTold || world.ask("limits"));
  }

  draw() {
    if (!world.known.has("limits")) return;
    const limits = [...world.limits.values()].sort(
      (one, other) => Number(isOfTenant(one)) - Number(isOfTenant(other)) || one.name.localeCompare(other.name),
    );
    if (!limits.length) {
      const text = "Jobs that need a limit wait until it is defined: by an app that declares it, here, or with";
      return fill(this.box, h("div.card", empty({ title: "No limits yet", text, command: FIRST, icon: "limits" })));
    }
    if (!this.boards.isConnected) fill(this.box, this.boards);
    keyed(
      this.boards,
      limits,
      (limit) => limit.name,
      (limit) => this.board(limit),
      drawBoard,
    );
  }

  /** @param {any} limit */
  board(limit) {
    const edit = { click: () => this.edit(world.limits.get(limit.name)) };
    const drop = { click: () => this.drop(limit.name) };
    const actions = h(
      "span.row-actions",
      pauseButton(limit.name, false, () => this.pause(world.limits.get(limit.name))),
      h(
        "button.icon-button",
        { type: "button", "aria-label": `Change ${limit.name}`, title: "Change", on: edit },
        icon("edit"),
      ),
      h(
        "button.icon-button",
        { type: "button", "aria-label": `Forget ${limit.name}`, title: "Forget", on: drop },
        icon("trash"),
      ),
    );
    return h(
      "section.card.board",
      { "aria-label": limit.name, tabindex: "-1", data: { row: limit.name } },
      h(
        "div.board-head",
        h("span.board-name", h("h2", limit.name), note("paused", "warn")),
        may("operate") && !isOfTenant(limit) && actions,
      ),
      h("div.windows"),
      h("div.notes"),
      h("dl.pairs"),
    );
  }

  /** @param {any} limit */
  async pause({ name, paused }) {
    const words = "It grants no permits until it is resumed. Calls in flight finish.";
    const done = await switchPause({ what: `limit ${name}`, isPaused: paused, words, path: at("limits", name) });
    if (done) await world.ask("limits");
  }

  /** @param {any} limit null: a new one */
  async edit(limit) {
    const done = await filledIn({
      title: limit ? `Change limit ${limit.name}` : "New limit",
      text: limit
        ? "Workers follow within seconds; calls in flight finish."
        : "Jobs that need it start as soon as it grants permits.",
      fields: fieldsOf(limit),
      action: limit ? "Review" : "Create",
      keep: limit ? "Keep it as it is" : "Not now",
      submit: (values) => this.save(limit, values),
    });
    if (done) toast(`Limit ${done} is ${limit ? "changed" : "defined"}`);
  }

  /** @param {any} limit @param {Record<string, string>} values @returns {Promise<string | null>} */
  async save(limit, values) {
    const name = limit?.name ?? values.name.trim();
    const body = bodyOf(values, limit);
    if (limit && !(await this.isMeant(limit, values))) return null;
    await api.put(at("limits", name), body, { headers: limit ? { "If-Match": `"${limit.version}"` } : {} });
    await world.ask("limits");
    return name;
  }

  /** @param {any} limit @param {Record<string, string>} values */
  isMeant(limit, values) {
    const facts = /** @type {[string, any][]} */ ([
      ["Rates", fromTo(rateTexts(limit).join(", "), values.rates.trim())],
    ]);
    const concurrency = [
      limit.concurrency ? whole(limit.concurrency) : "unlimited",
      values.concurrency.trim() || "unlimited",
    ];
    if (concurrency[0] !== concurrency[1]) facts.push(["Concurrency", fromTo(concurrency[0], concurrency[1])]);
    const title = `Change limit ${limit.name} for all workers?`;
    return confirmed({ title, facts, action: "Change the limit", keep: "Back" });
  }

  /** @param {string} name */
  async drop(name) {
    const words = "Jobs that need it wait until it is defined again.";
    const question = { title: `Forget limit ${name}?`, text: words, action: "Forget", keep: "Keep it", danger: true };
    if (!(await confirmed(question))) return;
    try {
      await api.delete(at("limits", name));
      toast(`Limit ${name} is removed`);
      await world.ask("limits");
    } catch (error) {
      toastProblem(error, "Not removed");
    }
  }
}

/** @param {HTMLElement} board @param {any} limit */
function drawBoard(board, limit) {
  drawPaused(board, limit);
  const windows = /** @type {HTMLElement} */ (board.querySelector(".windows"));
  const uses = usesOf(limit);
  const shown = uses.length ? uses : [{ label: ratesOf(limit), share: null, words: "not used yet" }];
  keyed(
    windows,
    shown,
    (use) => use.label,
    () => h("div.window", gauge(), h("div.grow", h("div"), h("small"))),
    (row, use) => {
      row
        .querySelector("lw-gauge")
        .show({ share: use.share, label: `${limit.name}, ${use.label}`, words: use.words, tone: alarmOf(limit) });
      text(row.querySelector(".grow > div"), use.label);
      text(row.querySelector("small"), use.words);
    },
  );
  fill(/** @type {any} */ (board.querySelector(".notes")), troubleOf(limit));
  fill(
    /** @type {any} */ (board.querySelector(".pairs")),
    pairsOf(limit).map(([name, value]) => h("div", h("dt", name), h("dd", value))),
  );
}

/** @param {any} limit @returns {[string, any][]} */
function pairsOf(limit) {
  const windows = limit.windows ?? [];
  const burst = windows.length ? Math.min(...windows.map((/** @type {any} */ each) => each.burst)) : null;
  const pace = limit.percent == null ? "–" : `${limit.percent} %`;
  return [
    ["Burst", whole(burst)],
    ["Max. cost", whole(limit.cost_max)],
    ["Pace", pace],
  ];
}
