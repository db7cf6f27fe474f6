/** A table that is given its items repeatedly and updates only the rows that changed. */

import { fill, h, keyed } from "../lib/dom.js";

const FOCUSABLE = "a, button, input";

/**
 * @template T
 * @typedef {{label: string, cell: (item: T) => any, class?: string, number?: (item: T) => number,
 *   quiet?: boolean}} Column
 * `class`: num (right), name (the row's own name), tight (as narrow as can be), full (its own line on a phone),
 * spare (not on a phone). `number`: zeros are greyed. `quiet`: the label is for screen readers only.
 */

/**
 * const lanes = table({label: "Lanes", columns, keyOf: (lane) => lane.queue}); lanes.show(items)
 * @template T
 * @param {{label: string, columns: Column<T>[], keyOf: (item: T) => string, open?: (item: T) => void,
 *   href?: (item: T) => string, versionOf?: (item: T) => string}} how
 */
export function table(how) {
  const body = h("tbody");
  const heads = how.columns.map((column) => headOf(column));
  const element = h("div.table-box", h("table.table", { "aria-label": how.label }, h("thead", h("tr", heads)), body));
  const rows = new Rows(how, body);
  element.show = (/** @type {T[]} */ items) => rows.show(items);
  return element;
}

/** @param {Column<any>} column */
function headOf(column) {
  const label = column.quiet ? h("span.sr", column.label) : column.label;
  return h("th", { class: column.class ?? "", scope: "col" }, label);
}

class Rows {
  /** What is drawn in each row. @type {Map<Element, {version: string, item: any}>} */
  #drawn = new Map();

  /** @param {any} how @param {HTMLElement} body */
  constructor(how, body) {
    this.how = { versionOf: JSON.stringify, ...how };
    this.body = body;
  }

  /** @param {any[]} items */
  show(items) {
    keyed(
      this.body,
      items,
      this.how.keyOf,
      (item) => this.#make(item),
      (row, item) => this.#update(row, item),
    );
    for (const row of this.#drawn.keys()) if (row.parentNode !== this.body) this.#drawn.delete(row);
  }

  /** @param {any} item */
  #make(item) {
    const row = h("tr", { tabindex: "-1", data: { row: this.how.keyOf(item) } });
    row.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.target === row && event.key === "Enter") this.#open(row);
    });
    return row;
  }

  /** @param {Element} row */
  #open(row) {
    const { open, href } = this.how;
    const item = this.#drawn.get(row)?.item;
    if (open) open(item);
    else if (href) location.hash = href(item);
  }

  /** @param {Element} row @param {any} item */
  #update(row, item) {
    const version = this.how.versionOf(item);
    if (this.#drawn.get(row)?.version === version) return;
    this.#drawn.set(row, { version, item });
    const at = [...row.querySelectorAll(FOCUSABLE)].indexOf(/** @type {Element} */ (document.activeElement));
    fill(
      row,
      this.how.columns.map((/** @type {Column<any>} */ column) => cellOf(column, item)),
    );
    // The focus stays on a link of this row although the row is rendered again.
    if (at >= 0) /** @type {any} */ (row.querySelectorAll(FOCUSABLE)[at])?.focus();
  }
}

/** @param {Column<any>} column @param {any} item */
function cellOf(column, item) {
  const isZero = column.number ? !column.number(item) : false;
  return h(
    "td",
    { class: `${column.class ?? ""}${isZero ? " zero" : ""}`, data: { label: column.quiet ? "" : column.label } },
    column.cell(item),
  );
}
