/** The form of a budget; the service always receives the whole definition. */

/** @typedef {import("../components/dialog.js").Field} Field */

/** @type {[string, string][]} */
const EVERY = [
  ["minute", "minute"],
  ["hour", "hour"],
  ["day", "day"],
  ["week", "week"],
  ["month", "month"],
  ["total", "none: one amount in total"],
];
/** @type {[string, string][]} */
const OVER = [
  ["wait", "jobs wait for the next window"],
  ["fail", "jobs fail"],
];
const AMOUNT = { inputmode: "decimal", pattern: "[0-9]+([.][0-9]{1,6})?" };
/** What stays for ever. @type {Field[]} */
const FIRST = [
  { name: "name", label: "Name", required: true, placeholder: "maps-spend", hint: "The name that jobs refer to." },
  {
    name: "unit",
    label: "Unit",
    value: "usd",
    required: true,
    hint: "usd, eur, or anything that can be counted: rows, calls …",
  },
  { name: "every", label: "Window", value: "day", options: EVERY, hint: "Each window starts with the full amount." },
];

/** @param {any} budget @returns {Field[]} */
export function fieldsOf(budget) {
  const hint = budget ? `In ${budget.unit}, per ${budget.every}.` : "Per window.";
  return [
    ...(budget ? [] : FIRST),
    { name: "limit", label: "Limit", value: budget?.limit, required: true, placeholder: "25", ...AMOUNT, hint },
    { name: "over", label: "When it is used up", value: budget?.over ?? "wait", options: OVER },
  ];
}

/** What was not asked stays as it is. @param {Record<string, string>} values @param {any} budget */
export function bodyOf(values, budget) {
  const first = budget ? budget.definition : { unit: values.unit.trim(), every: values.every };
  return { ...first, limit: values.limit.trim(), over: values.over };
}
