/** The form of a limit, with rates such as 100/minute; the service always receives the whole definition. */

/** In 1,000/day the comma is part of the number and does not separate rates. */
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
    : [{ name: "name", label: "Name", required: true, placeholder: "maps", hint: "The name that jobs refer to." }];
  return [
    ...fields,
    {
      name: "rates",
      label: "Rates",
      value: rateTexts(limit).join(", "),
      placeholder: "100/minute, 5000/day",
      hint: "As the provider states them; separate several rates with commas.",
    },
    {
      name: "concurrency",
      label: "Concurrency",
      value: limit?.concurrency ?? "",
      placeholder: "unlimited",
      inputmode: "numeric",
      pattern: "[0-9]*",
      hint: "How many calls may be in flight; empty: unlimited.",
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
