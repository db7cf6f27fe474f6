/** A world map with rows as points, and areas or marks for shards.
 *
 * Degrees are drawn linearly, a little narrower than high, so that a box on the globe is a box on the screen. Land and
 * areas are SVG, coloured by style sheets; points are many and are painted on a canvas.
 */

import { attribute, fill, h, keyed, svg } from "../lib/dom.js";
import { COUNTRIES, LAND, PER_DEGREE } from "./land.js";

const NORTH = 84;
const SOUTH = -57;
const FRESH_MS = 1_400;
const FRAME_MS = 40;
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** @typedef {{key: string, tone: string, title: string, href?: string, isOpen?: boolean,
 *   box?: [number, number, number, number], at?: [number, number]}} Area `box`: south, west, north, east; `at`: longitude
 *   and latitude */
/** @typedef {{at: [number, number], count: number, others: number, since: number}} Point */

class WorldMap extends HTMLElement {
  /** By place. @type {Map<string, Point>} */
  #points = new Map();
  /** Seen a moment ago, and not yet as calm as the rest. @type {Set<Point>} */
  #fresh = new Set();
  #degrees = 0.5;
  #areas = svg("g.map-areas");
  #canvas = h("canvas.map-points", { "aria-hidden": "true" });
  #frame = 0;
  #painted = 0;
  #isStale = true;
  /** What does not move, painted once. @type {HTMLCanvasElement} */
  #still = document.createElement("canvas");
  #size = new ResizeObserver(() => this.#resized());
  #theme = new MutationObserver(() => this.#later(true));
  #scheme = () => this.#later(true);

  connectedCallback() {
    if (!this.firstChild) this.#draw();
    this.#size.observe(this);
    this.#theme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", this.#scheme);
  }

  disconnectedCallback() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#size.disconnect();
    this.#theme.disconnect();
    matchMedia("(prefers-color-scheme: dark)").removeEventListener("change", this.#scheme);
  }

  #draw() {
    this.classList.add("map");
    const size = `-180 ${-NORTH} 360 ${NORTH - SOUTH}`;
    const land = svg("path.map-land", { d: LAND, transform: `scale(${1 / PER_DEGREE})`, "aria-hidden": "true" });
    const lines = svg("path.map-lines", { d: grid(), "aria-hidden": "true" });
    fill(this, svg("svg", { viewBox: size, preserveAspectRatio: "none" }, lines, land, this.#areas), this.#canvas);
  }

  // -- input ----------------------------------------------------------------------------------------------------------

  get count() {
    return this.#points.size;
  }

  /** Rows at points: [longitude, latitude, count]. Counts of the same point are added up.
   * @param {[number, number, number][]} items @param {[number, number, number][]} others @param {number} degrees
   * @param {boolean} isNews whether they have just arrived */
  add(items, others, degrees, isNews) {
    this.#degrees = degrees;
    const since = isNews && !calm.matches ? performance.now() : 0;
    for (const [east, north, count] of items) this.#put(east, north, count, 0, since);
    for (const [east, north, count] of others) this.#put(east, north, 0, count, 0);
    if (items.length + others.length) this.#later(true);
  }

  /** @param {number} east @param {number} north @param {number} count @param {number} others @param {number} since */
  #put(east, north, count, others, since) {
    const key = `${east},${north}`;
    const point = this.#points.get(key) ?? { at: [east, north], count: 0, others: 0, since: 0 };
    this.#points.set(key, point);
    point.count += count;
    point.others += others;
    if (!since) return;
    point.since = since;
    this.#fresh.add(point);
  }

  /** In place of all that was there, without a sign: it was counted again. @param {WorldMap} other */
  take(other) {
    this.#points = other.#points;
    this.#degrees = other.#degrees;
    this.#fresh.clear();
    this.#later(true);
  }

  /** @param {Area[]} areas */
  areas(areas) {
    keyed(this.#areas, areas, (area) => area.key, made, told);
  }

  // -- painting -------------------------------------------------------------------------------------------------------

  #resized() {
    const { width, height } = this.getBoundingClientRect();
    const dense = Math.min(devicePixelRatio || 1, 2);
    for (const canvas of [this.#canvas, this.#still]) {
      canvas.width = Math.max(1, Math.round(width * dense));
      canvas.height = Math.max(1, Math.round(height * dense));
    }
    this.#later(true);
  }

  /** @param {boolean} isStale */
  #later(isStale) {
    this.#isStale ||= isStale;
    if (!this.#frame && this.isConnected) this.#frame = requestAnimationFrame((now) => this.#paint(now));
  }

  /** @param {number} now */
  #paint(now) {
    this.#frame = 0;
    if (!this.#isStale && now - this.#painted < FRAME_MS) return this.#later(false);
    this.#painted = now;
    const ink = this.#canvas.getContext("2d");
    const still = this.#still.getContext("2d");
    if (!ink || !still) return;
    if (this.#isStale) this.#paintStill(still);
    this.#isStale = false;
    ink.clearRect(0, 0, this.#canvas.width, this.#canvas.height);
    ink.drawImage(this.#still, 0, 0);
    this.#paintFresh(ink, now);
    if (this.#fresh.size) this.#later(false);
  }

  /** @param {CanvasRenderingContext2D} ink */
  #paintStill(ink) {
    const style = getComputedStyle(this.#canvas);
    ink.clearRect(0, 0, this.#canvas.width, this.#canvas.height);
    const side = this.#side();
    // Earlier points are drawn below new ones.
    ink.fillStyle = style.outlineColor;
    for (const { at, count, others } of this.#points.values()) {
      if (count || !others) continue;
      ink.globalAlpha = strength(others) * 0.7;
      this.#square(ink, at, side);
    }
    ink.fillStyle = style.color;
    for (const { at, count } of this.#points.values()) {
      if (!count) continue;
      ink.globalAlpha = strength(count);
      this.#square(ink, at, side);
    }
    ink.globalAlpha = 1;
  }

  /** @param {CanvasRenderingContext2D} ink @param {number} now */
  #paintFresh(ink, now) {
    ink.fillStyle = getComputedStyle(this.#canvas).borderTopColor;
    const side = this.#side();
    for (const point of this.#fresh) {
      const age = Math.max(0, now - point.since) / FRESH_MS;
      if (age >= 1) {
        this.#fresh.delete(point);
        continue;
      }
      ink.globalAlpha = (1 - age) ** 2;
      this.#square(ink, point.at, side * (1 + 1.4 * (1 - age)));
    }
    ink.globalAlpha = 1;
  }

  /** The size of a point in pixels of the canvas: as large as its cell, and large enough to be visible. */
  #side() {
    return Math.max((this.#canvas.width / 360) * this.#degrees * 1.15, 1.6 * Math.min(devicePixelRatio || 1, 2));
  }

  /** @param {CanvasRenderingContext2D} ink @param {[number, number]} at @param {number} side */
  #square(ink, [east, north], side) {
    const x = ((east + 180) / 360) * this.#canvas.width;
    const y = ((NORTH - north) / (NORTH - SOUTH)) * this.#canvas.height;
    ink.fillRect(x - side / 2, y - side / 2, side, side);
  }
}

/** Of one row something is seen, of a thousand not everything. @param {number} count */
function strength(count) {
  return Math.min(1, 0.42 + Math.log10(count) * 0.24);
}

function grid() {
  const meridians = [-120, -60, 0, 60, 120].map((east) => `M${east} ${-NORTH}V${-SOUTH}`);
  return [...meridians, ...[60, 30, 0, -30].map((north) => `M-180 ${-north}H180`)].join("");
}

/** @param {Area} area */
function made(area) {
  const words = svg("title");
  const shape = area.box ? svg("rect.map-area") : svg("rect.map-mark", { rx: 1 });
  return area.href ? svg("a", shape, words) : svg("g", shape, words);
}

/** @param {SVGElement} element @param {Area} area */
function told(element, area) {
  const [shape, words] = element.children;
  const [south, west, north, east] = area.box ?? around(area.at ?? [0, 0]);
  if (area.href) attribute(element, "href", area.href);
  attribute(element, "data-tone", area.tone);
  attribute(element, "aria-label", area.title);
  shape.classList.toggle("open", Boolean(area.isOpen));
  attribute(shape, "x", west);
  attribute(shape, "y", -Math.min(north, NORTH));
  attribute(shape, "width", east - west);
  attribute(shape, "height", Math.max(0, Math.min(north, NORTH) - Math.max(south, SOUTH)));
  if (words.textContent !== area.title) words.textContent = area.title;
}

/** @param {[number, number]} at @returns {[number, number, number, number]} */
function around([east, north]) {
  return [north - 1.4, east - 1.7, north + 1.4, east + 1.7];
}

customElements.define("lw-map", WorldMap);

/** @returns {any} */
export function worldMap() {
  return document.createElement("lw-map");
}

/** Where a country lies; none: it is not known. @param {string} code @returns {[number, number] | undefined} */
export function countryAt(code) {
  return COUNTRIES.get(code.toUpperCase());
}
