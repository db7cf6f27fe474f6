/** The scale of a chart: time runs to the right, the top is a round number. */

export const HEIGHT = 132;
export const LEFT = 44;
export const RIGHT = 8;
export const TOP = 8;
export const BOTTOM = 20;
/** A chart shows the shortest of these that contains all points, so that a new page has no empty minutes. */
const LOOKS = [60, 120, 300];
/** Latencies have a logarithmic scale with clock units: a minute must not make a tenth of a second invisible. */
export const CLOCK = [0.001, 0.01, 0.1, 1, 10, 60, 600, 3_600, 36_000, 360_000, 3_600_000];
const STEPS = 2;
const MARKS_MAX = 5;

/** @typedef {{at: number, value: number}} Point */
/** @typedef {{name: string, tone: string, points: Point[], area?: boolean}} Line */
/**
 * `say`: a value as text; `mark`: a shorter text for the axis; `orders`: the axis marks; `none`: text in place of lines.
 * @typedef {{lines: Line[], now: number, seconds: number, say?: (value: number) => string, none?: string,
 *   mark?: (value: number) => string, orders?: number[]}} Drawing
 */
/** @typedef {{marks: number[], share: (value: number) => number}} Axis `share`: 0 at the bottom, 1 at the top */
/** @typedef {{x: (at: number) => number, y: (value: number) => number, marks: number[], width: number}} Scale */

/** @param {Drawing} drawing @param {number} width @returns {Scale} */
export function scaleOf({ lines, now, seconds, orders }, width) {
  const values = lines.flatMap((line) => line.points.map((point) => point.value));
  const { marks, share } = orders ? byOrders(values, orders) : evenly(values);
  const inner = width - LEFT - RIGHT;
  return {
    x: (at) => LEFT + inner * (1 - (now - at) / (seconds * 1000)),
    y: (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - share(value)),
    marks,
    width,
  };
}

/** @param {number[]} values @returns {Axis} */
function evenly(values) {
  const top = niceTop(Math.max(1, ...values));
  const marks = Array.from({ length: STEPS + 1 }, (_, at) => (top * at) / STEPS);
  return { marks, share: (value) => value / top };
}

/** @param {number[]} values @param {number[]} orders @returns {Axis} */
function byOrders(values, orders) {
  const [least, most] = values.length ? [Math.min(...values), Math.max(...values)] : [orders[1], orders[1]];
  const found = orders.findIndex((each) => each >= most);
  const last = Math.max(STEPS, found < 0 ? orders.length - 1 : found);
  const below = Math.min(last - STEPS, Math.max(0, orders.filter((each) => each <= least).length - 1));
  const used = orders.slice(below, last + 1);
  const every = Math.ceil(used.length / MARKS_MAX);
  const marks = used.filter((_, at) => at % every === 0);
  return { marks, share: (value) => orderOf(value, used) / (used.length - 1) };
}

/**
 * The position of a value among the axis marks: 1.5 is half-way between the second and the third.
 * @param {number} value
 * @param {number[]} orders
 */
function orderOf(value, orders) {
  const at = Math.max(0, Math.min(orders.length - 2, orders.filter((each) => each <= value).length - 1));
  return value <= orders[0] ? 0 : at + Math.log(value / orders[at]) / Math.log(orders[at + 1] / orders[at]);
}

/** @param {Line[]} lines @param {number} now ms @returns {number} seconds */
export function lookOf(lines, now) {
  const first = Math.min(now, ...lines.flatMap((line) => line.points.slice(0, 1).map((point) => point.at)));
  return LOOKS.find((seconds) => now - first <= seconds * 1_000) ?? LOOKS[LOOKS.length - 1];
}

/** How far the marks of time are from each other. @param {number} seconds */
export function stepOf(seconds) {
  return Math.min(60, seconds / 4);
}

/** A round number that is not much larger: 1, 2, 4, 5, 10 … @param {number} most */
export function niceTop(most) {
  const size = 10 ** Math.floor(Math.log10(most));
  return /** @type {number} */ ([1, 2, 4, 5, 10].find((each) => each * size >= most * 0.999)) * size;
}
