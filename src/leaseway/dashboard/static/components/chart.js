/** A line chart of the last minutes: a grid, one colour per line, and the values at the pointer. */

import { fill, h, svg } from "../lib/dom.js";
import { figure, span } from "../lib/format.js";
import { BOTTOM, HEIGHT, LEFT, RIGHT, scaleOf, stepOf, TOP } from "./scale.js";

const NARROW = 420;
/** A gap in the updates is a gap in the line. */
const GAP_MS = 15_000;

/** @typedef {import("./scale.js").Point} Point */
/** @typedef {import("./scale.js").Line} Line */
/** @typedef {import("./scale.js").Drawing} Drawing */
/** @typedef {import("./scale.js").Scale} Scale */

export class Chart extends HTMLElement {
  /** @type {Drawing | null} */
  #drawing = null;
  #width = 0;
  /** @type {number | null} the pointer, in px */
  #at = null;
  #tip = h("div.chart-tip", { hidden: true });
  #watch = new ResizeObserver(([entry]) => this.#resized(entry.contentRect.width));

  connectedCallback() {
    this.classList.add("chart");
    this.#watch.observe(this);
    this.addEventListener("pointermove", (event) => this.#point(event.clientX - this.getBoundingClientRect().left));
    this.addEventListener("pointerleave", () => this.#point(null));
  }

  disconnectedCallback() {
    this.#watch.disconnect();
  }

  /** @param {Drawing} drawing */
  show(drawing) {
    this.#drawing = drawing;
    this.#draw();
  }

  /** @param {number} width */
  #resized(width) {
    if (Math.abs(width - this.#width) < 1) return;
    this.#width = width;
    this.#draw();
  }

  /** @param {number | null} at */
  #point(at) {
    this.#at = at;
    this.#draw();
  }

  #draw() {
    const drawing = this.#drawing;
    if (!drawing || this.#width < 80) return;
    const scale = scaleOf(drawing, this.#width);
    const pointed = this.#at == null ? null : nearest(drawing, scale, this.#at);
    fill(
      this,
      svg(
        "svg",
        {
          viewBox: `0 0 ${this.#width} ${HEIGHT}`,
          width: this.#width,
          height: HEIGHT,
          role: "img",
          "aria-label": spoken(drawing),
        },
        grid(drawing, scale),
        drawing.lines.map((line) => drawn(line, scale)),
        pointed && crosshair(pointed, scale),
        nothing(drawing, scale),
      ),
      this.#tip,
    );
    this.#showTip(pointed, drawing, scale);
  }

  /** @param {number | null} pointed ms @param {Drawing} drawing @param {Scale} scale */
  #showTip(pointed, drawing, scale) {
    this.#tip.hidden = pointed == null;
    if (pointed == null) return;
    const say = drawing.say ?? figure;
    const rows = drawing.lines.map((line) => tipRow(line, valueAt(line, pointed), say));
    fill(this.#tip, h("div.muted", `${span(Math.max(0, Math.round((drawing.now - pointed) / 1000)))} ago`), rows);
    const isRight = scale.x(pointed) > scale.width / 2;
    this.#tip.style.left = isRight ? "auto" : `${scale.x(pointed) + 10}px`;
    this.#tip.style.right = isRight ? `${scale.width - scale.x(pointed) + 10}px` : "auto";
  }
}

/** @param {Drawing} drawing @param {Scale} scale */
function grid({ seconds, say = figure, mark = say, now }, scale) {
  const every = (scale.width < NARROW ? 2 : 1) * stepOf(seconds);
  const marks = Array.from({ length: Math.floor(seconds / every) + 1 }, (_, at) => at * every);
  return [
    scale.marks.map((value) => [
      svg("line.grid-line", { x1: LEFT, x2: scale.width - RIGHT, y1: scale.y(value), y2: scale.y(value) }),
      svg("text.axis", { x: LEFT - 6, y: scale.y(value) + 4, "text-anchor": "end" }, mark(value)),
    ]),
    marks.map((back) =>
      svg(
        "text.axis",
        {
          x: scale.x(now - back * 1_000),
          y: HEIGHT - 5,
          "text-anchor": back === 0 ? "end" : back === seconds ? "start" : "middle",
        },
        back === 0 ? "now" : `−${back % 60 ? `${back} s` : `${back / 60} min`}`,
      ),
    ),
  ];
}

/** @param {Line} line @param {Scale} scale */
function drawn(line, scale) {
  const pieces = pieced(line.points).filter((piece) => piece.length > 1);
  return svg(
    "g",
    { data: { tone: line.tone } },
    pieces.map((piece) => [
      line.area &&
        svg("path.area", {
          d: `${path(piece, scale)}L${foot(piece[piece.length - 1], scale)}L${foot(piece[0], scale)}Z`,
        }),
      svg("path.line", { d: path(piece, scale) }),
    ]),
  );
}

/** @param {Point[]} points */
function pieced(points) {
  /** @type {Point[][]} */
  const pieces = [];
  for (const point of points) {
    const last = pieces.at(-1);
    if (last && point.at - last[last.length - 1].at < GAP_MS) last.push(point);
    else pieces.push([point]);
  }
  return pieces;
}

/** @param {Point} point @param {Scale} scale */
function foot(point, scale) {
  return `${Math.max(LEFT, scale.x(point.at)).toFixed(1)} ${scale.y(0)}`;
}

/** @param {Point[]} points @param {Scale} scale */
function path(points, scale) {
  return points
    .map(
      (point, at) =>
        `${at ? "L" : "M"}${Math.max(LEFT, scale.x(point.at)).toFixed(1)} ${scale.y(point.value).toFixed(1)}`,
    )
    .join("");
}

/** @param {Drawing} drawing @param {Scale} scale @param {number} x @returns {number | null} */
function nearest({ lines }, scale, x) {
  const points = lines.flatMap((line) => line.points);
  if (!points.length) return null;
  return points.reduce((best, point) =>
    Math.abs(scale.x(point.at) - x) < Math.abs(scale.x(best.at) - x) ? point : best,
  ).at;
}

/** @param {Drawing} drawing @param {Scale} scale */
function nothing({ lines, none }, scale) {
  if (!none || lines.some((line) => line.points.length > 1)) return null;
  return svg("text.chart-none", { x: (LEFT + scale.width) / 2, y: HEIGHT / 2, "text-anchor": "middle" }, none);
}

/** @param {number} at @param {Scale} scale */
function crosshair(at, scale) {
  return svg("line.crosshair", { x1: scale.x(at), x2: scale.x(at), y1: TOP, y2: HEIGHT - BOTTOM });
}

/** @param {Line} line @param {number} at @returns {number | null} */
function valueAt(line, at) {
  const near = line.points.filter((point) => Math.abs(point.at - at) < 3_000);
  return near.length
    ? near.reduce((best, point) => (Math.abs(point.at - at) < Math.abs(best.at - at) ? point : best)).value
    : null;
}

/** @param {Line} line @param {number | null} value @param {(value: number) => string} say */
function tipRow(line, value, say) {
  return h(
    "div.tip-row",
    h("span.key", { data: { tone: line.tone } }, line.name),
    h("span.num", value == null ? "–" : say(value)),
  );
}

/** For those who cannot see it: where each line ends. @param {Drawing} drawing */
function spoken({ lines, say = figure, seconds }) {
  const ends = lines.map(
    (line) => `${line.name} ${line.points.length ? say(line.points[line.points.length - 1].value) : "nothing yet"}`,
  );
  return `Last ${span(seconds)}: now ${ends.join(", ")}`;
}

/** What the colours mean, with the newest value. @param {{name: string, tone: string}[]} lines */
export function legend(lines) {
  const values = lines.map((line) => h("span.key", { data: { tone: line.tone } }, line.name));
  return h("div.legend", values);
}

customElements.define("lw-chart", Chart);

/** @returns {Chart} */
export function chart() {
  return /** @type {Chart} */ (document.createElement("lw-chart"));
}
