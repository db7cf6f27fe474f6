/** Events in order, with the time between them. */

import { h } from "../lib/dom.js";
import { fully, moment, ms, span } from "../lib/format.js";

/** @typedef {{at: string | null, title: any, tone: string, about?: any}} Step */

const NOTED_SECONDS = 0.001;

/** @param {Step[]} steps */
export function timeline(steps) {
  return h("ol.timeline", steps.map((step, at) => stepOf(step, steps[at - 1])));
}

/** @param {Step} step @param {Step | undefined} before */
function stepOf(step, before) {
  const seconds = before ? (ms(step.at) - ms(before.at)) / 1000 : 0;
  const gap = seconds >= NOTED_SECONDS ? `+${span(seconds)}` : "";
  const time = h("time", { datetime: step.at ?? "", title: fully(step.at) }, moment(step.at));
  return h("li", { data: { tone: step.tone } }, h("span.timeline-time", time, h("small", gap)), h("span.timeline-what", step.title, step.about && h("small", step.about)));
}
