/** Formats numbers, durations and times: always with their unit, and as short as possible. */

const LOCALE = "en-US";
const WHOLE = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 0 });
const ONE = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 1 });
const TWO = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 2 });
const SHORT = new Intl.NumberFormat(LOCALE, { notation: "compact", maximumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat(LOCALE, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const DAY = new Intl.DateTimeFormat(LOCALE, { month: "short", day: "numeric" });
const FULL = new Intl.DateTimeFormat(LOCALE, { dateStyle: "medium", timeStyle: "long", hourCycle: "h23" });
const NONE = "–";
/** @type {[string, number][]} */
const SPANS = [
  ["d", 86_400],
  ["h", 3_600],
  ["min", 60],
];
/** @type {Record<string, string>} */
const SIGNS = { usd: "$", eur: "€", gbp: "£" };

/** 1,234,567 @param {number | null | undefined} value */
export function whole(value) {
  return value == null || Number.isNaN(value) ? NONE : WHOLE.format(value);
}

/** 1.2M, once the digits would not fit. @param {number | null | undefined} value @param {number} [from] */
export function short(value, from = 100_000) {
  if (value == null || Number.isNaN(value)) return NONE;
  return Math.abs(value) < from ? whole(value) : SHORT.format(value);
}

/** 1 job, 2 jobs @param {number} count @param {string} one @param {string} [many] */
export function counted(count, one, many = `${one}s`) {
  return `${whole(count)} ${count === 1 ? one : many}`;
}

/** 12.3/s @param {number | null | undefined} perSecond */
export function rate(perSecond) {
  return perSecond == null ? NONE : `${figure(perSecond)}/s`;
}

/** Three digits that matter. @param {number | null | undefined} value */
export function figure(value) {
  if (value == null || Number.isNaN(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 100_000) return SHORT.format(value);
  return (size >= 100 || size === 0 ? WHOLE : size >= 10 ? ONE : TWO).format(value);
}

/** 10K/s: for an axis, where little room is. @param {number} perSecond */
export function shortRate(perSecond) {
  return `${perSecond >= 1_000 ? SHORT.format(perSecond) : figure(perSecond)}/s`;
}

/** @param {number | null | undefined} share 0 to 1 */
export function percent(share) {
  return share == null || Number.isNaN(share)
    ? NONE
    : `${share > 0 && share < 0.1 ? ONE.format(share * 100) : WHOLE.format(share * 100)} %`;
}

/** 850 ms, 12.3 s, 4 min 10 s, 3 h 5 min, 2 d 4 h @param {number | null | undefined} seconds */
export function span(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return NONE;
  const size = Math.abs(seconds);
  if (size < 0.001) return "0 ms";
  if (size < 1) return `${WHOLE.format(seconds * 1000)} ms`;
  if (size < 60) return `${size < 10 ? ONE.format(seconds) : WHOLE.format(seconds)} s`;
  return parts(Math.round(size)).slice(0, 2).join(" ");
}

/** @param {number} seconds */
function parts(seconds) {
  const said = [];
  let left = seconds;
  for (const [unit, size] of SPANS) {
    if (left >= size) said.push(`${Math.floor(left / size)} ${unit}`);
    left %= size;
  }
  if (left) said.push(`${left} s`);
  return said;
}

/** How a provider states it: 100 per minute @param {number} count @param {number} windowSeconds */
export function perWindow(count, windowSeconds) {
  return `${whole(count)} per ${windowName(windowSeconds)}`;
}

/** @param {number} seconds */
export function windowName(seconds) {
  const names = { 1: "second", 60: "minute", 3_600: "hour", 86_400: "day" };
  return names[/** @type {keyof typeof names} */ (seconds)] ?? span(seconds);
}

/**
 * Amounts are text because they are exact: "12.5" and "usd" become $12.50.
 * @param {string|number|null|undefined} amount
 * @param {string} unit
 */
export function money(amount, unit) {
  if (amount == null) return NONE;
  const value = Number(amount);
  const sign = SIGNS[unit?.toLowerCase?.()];
  if (!sign) return `${figure(value)} ${unit ?? ""}`.trim();
  const digits = value !== 0 && Math.abs(value) < 0.1 ? 4 : 2;
  const said = Math.abs(value).toLocaleString(LOCALE, { minimumFractionDigits: 2, maximumFractionDigits: digits });
  return `${value < 0 ? "−" : ""}${sign}${said}`;
}

/** @param {string | null | undefined} instant ISO 8601 @returns {number} ms since 1970, NaN if there is none */
export function ms(instant) {
  return instant ? Date.parse(instant) : NaN;
}

/** The time of day, with the day if it is another one. @param {string | null | undefined} instant */
export function moment(instant) {
  if (!instant) return NONE;
  const date = new Date(instant);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? CLOCK.format(date) : `${DAY.format(date)}, ${CLOCK.format(date)}`;
}

/** All of it, for a title. @param {string | null | undefined} instant */
export function fully(instant) {
  return instant ? FULL.format(new Date(instant)) : "";
}

/** 12 s ago, in 4 min @param {string | null | undefined} instant @param {number} [now] ms, on the service's clock */
export function ago(instant, now = Date.now()) {
  const at = ms(instant);
  if (Number.isNaN(at)) return NONE;
  const seconds = (now - at) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${span(Math.floor(seconds))} ago` : `in ${span(Math.ceil(-seconds))}`;
}

/** 01jd…9f2k: enough to tell one from another. @param {string} id */
export function shortId(id) {
  return id.length > 14 ? `${id.slice(0, 6)}…${id.slice(-6)}` : id;
}

/** @param {number | null | undefined} bytes */
export function bytes(bytes) {
  if (bytes == null) return NONE;
  if (bytes < 1_000) return `${bytes} B`;
  return bytes < 1_000_000 ? `${ONE.format(bytes / 1_000)} kB` : `${ONE.format(bytes / 1_000_000)} MB`;
}
