/** Time series with a maximum age. */

/** A chart has one point per second, however frequent the updates are. */
const STEP_MS = 950;
/** A rate over a shorter time is not meaningful. */
const LEAST_MS = 2_000;

export class Series {
  /** @type {{at: number, value: number}[]} */
  points = [];

  /** @param {number} seconds how far back */
  constructor(seconds) {
    this.seconds = seconds;
  }

  /** @param {number} at ms @param {number} value */
  add(at, value) {
    const last = this.points.at(-1);
    if (last && at < last.at + STEP_MS) last.value = value;
    else this.points.push({ at, value });
    this.forget(at);
  }

  /** @param {number} now ms */
  forget(now) {
    const from = now - this.seconds * 1000;
    let old = 0;
    while (old < this.points.length && this.points[old].at < from) old += 1;
    if (old) this.points.splice(0, old);
  }

  get last() {
    return this.points.at(-1)?.value ?? null;
  }

  values() {
    return this.points.map((point) => point.value);
  }
}

/** A counter ─► its rate. A smaller value means that the counter was restarted. */
export class Speed extends Series {
  /** @type {{at: number, count: number}[]} */
  #counts = [];

  /** @param {number} seconds @param {number} [over] so many seconds are averaged */
  constructor(seconds, over = 5) {
    super(seconds);
    this.over = over;
  }

  /** @param {number} at ms @param {number} count */
  saw(at, count) {
    const counts = this.#counts;
    if (counts.length && count < counts[counts.length - 1].count) counts.length = 0;
    counts.push({ at, count });
    while (counts.length > 2 && counts[1].at < at - this.over * 1000) counts.shift();
    const [first] = counts;
    if (at >= first.at + LEAST_MS) this.add(at, ((count - first.count) * 1000) / (at - first.at));
  }
}

/** Single measurements ─► their median and 95th percentile, per time step. */
export class Spread {
  /** @type {{at: number, value: number}[]} */
  #seen = [];

  /** @param {number} seconds @param {number} [step] @param {number} [most] */
  constructor(seconds, step = 5, most = 5_000) {
    this.step = step;
    this.most = most;
    this.middle = new Series(seconds);
    this.worst = new Series(seconds);
  }

  /** @param {number} at ms @param {number} value */
  saw(at, value) {
    this.#seen.push({ at, value });
    if (this.#seen.length > this.most) this.#seen.splice(0, this.most / 2);
  }

  /** Once a second or so. @param {number} now ms */
  draw(now) {
    const from = now - this.step * 2_000;
    this.#seen = this.#seen.filter((each) => each.at >= from);
    if (!this.#seen.length) return;
    const values = this.#seen.map((each) => each.value).sort((one, other) => one - other);
    this.middle.add(now, quantile(values, 0.5));
    this.worst.add(now, quantile(values, 0.95));
  }
}

/** @param {number[]} sorted @param {number} share */
export function quantile(sorted, share) {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
}
