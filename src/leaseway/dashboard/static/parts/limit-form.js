/** A limit as people write it, 100/minute, and as the service takes it: always as a whole. */

/** 1,000/day: such a comma is part of a number and divides no rates. */
const THOUSANDS = /(\d),(?=\d{3})/g;

/** @param {any} limit @returns {string[]} */
export function rateTexts(limit) {
  return (limit?.definition?.rates ?? []).map((/** @type {string} */ rate) => rate.replace(THOUSANDS, "$1"));
}

/** @param {any} limit @returns {import("../components/dialog.js").Field[]} */
export function fieldsOf(limit) {
  /** @type {import("../components/dialog.js").Field[]} */
  const fields = limit
    ? []
    : [{ name: "name", label: "Name", required: true, placeholder: "maps", hint: "The name that jobs use." }];
  return [
    ...fields,
    {
      name: "rates",
      label: "Rates",
      value: rateTexts(limit).join(", "),
      placeholder: "100/minute, 5000/day",
      hint: "As the provider states them; several are divided by commas.",
    },
    {
      name: "concurrency",
      label: "At once",
      value: limit?.concurrency ?? "",
      placeholder: "any number",
      inputmode: "numeric",
      pattern: "[0-9]*",
      hint: "How many calls may be under way; empty: any number.",
    },
  ];
}

/** What was not asked stays as it is. @param {Record<string, string>} values @param {any} limit */
export function bodyOf(values, limit) {
  const rates = values.rates
    .replace(THOUSANDS, "$1")
    .split(",")
    .map((each) => each.trim())
    .filter(Boolean);
  const concurrency = values.concurrency.trim();
  return { ...limit?.definition, rates, concurrency: concurrency ? Number(concurrency) : null };
}
