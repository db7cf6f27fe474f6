/** Icons on a grid of 16, drawn with one stroke in the colour of the text beside them. */

import { svg } from "../lib/dom.js";

/** @type {Record<string, string>} */
const PATHS = {
  overview: "M2 9.5 5 6l3 3 6-6M2 13.5h12",
  jobs: "M3 4h10M3 8h10M3 12h6",
  dead: "M3 5h10v8H3zM2 2.5h12V5H2zM6.5 8h3",
  imports: "M8 2v8M5 7.5 8 10.5l3-3M3 13.5h10",
  lanes: "M4 2v12M12 2v12M8 2v2.5M8 6.8v2.4M8 11.5V14",
  limits: "M2.5 11.5a6 6 0 1 1 11 0M8 10l3-4",
  budgets: "M2 4.5h12v8H2zM2 7.5h12M4.5 10.5h2",
  workers: "M5 6.5h6v5H5zM8 2.5v4M6 2.5h4M2.5 8v2M13.5 8v2M6.5 11.5v2M9.5 11.5v2",
  copy: "M5.5 5.5h7v8h-7zM10.5 5.5v-3h-7v8h2",
  check: "m3 8.5 3.5 3.5L13 4.5",
  problem: "M8 2 14.5 13.5h-13zM8 6.5v3M8 11.4v.2",
  empty: "M2.5 9.5 5 3h6l2.5 6.5v3.5h-11zM2.5 9.5h3.2a2.3 2.3 0 0 0 4.6 0h3.2",
  sun: "M8 5.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.6M8 1.5v1.4M8 13.1v1.4M1.5 8h1.4M13.1 8h1.4M3.4 3.4l1 1M11.6 11.6l1 1M3.4 12.6l1-1M11.6 4.4l1-1",
  moon: "M13 9.8A5.6 5.6 0 0 1 6.2 3 5.6 5.6 0 1 0 13 9.8",
  auto: "M8 2.2a5.8 5.8 0 1 0 0 11.6zM8 2.2a5.8 5.8 0 0 1 0 11.6",
  close: "m4 4 8 8M12 4l-8 8",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  edit: "M3 13l.6-2.8L10.8 3 13 5.2 5.8 12.4zM9.4 4.4l2.2 2.2",
  trash: "M3 4.5h10M6 4.5V3h4v1.5M4.5 4.5l.6 9h5.8l.6-9",
  retry: "M13 8a5 5 0 1 1-1.6-3.7L13 5.8M13 2.5v3.3H9.7",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  play: "M5 3.2v9.6L12.5 8z",
  search: "M7 2.8a4.2 4.2 0 1 0 0 8.4 4.2 4.2 0 0 0 0-8.4M10.2 10.2l3.3 3.3",
  right: "m6 3.5 4.5 4.5L6 12.5",
  left: "M10 3.5 5.5 8l4.5 4.5",
  down: "m3.5 6 4.5 4.5L12.5 6",
  out: "M6.5 2.5h-4v11h4M6.5 8h7M10.8 5.2 13.6 8l-2.8 2.8",
  help: "M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8M6.2 6.3a1.8 1.8 0 1 1 2.6 1.8c-.6.3-.8.6-.8 1.2M8 11.4v.1",
  plus: "M8 3v10M3 8h10",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  clock: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2M8 4.8V8l2.2 1.6",
};

/** @param {string} name @param {string} [label] for those that cannot see it; without, it is decoration */
export function icon(name, label) {
  const meaning = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
  return svg("svg.icon", { viewBox: "0 0 16 16", ...meaning }, svg("path", { d: PATHS[name] ?? PATHS.empty }));
}
