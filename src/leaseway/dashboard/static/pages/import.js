/** One run of an import: map, progress and problems. */

import { ApiProblem, api, at, may } from "../lib/api.js";
import { fill, h } from "../lib/dom.js";
import { Page, useStyles } from "../lib/page.js";
import { waiting } from "../components/empty.js";
import { RunOfJobs } from "../parts/import-of-jobs.js";

useStyles(import.meta.url, "../styles/jobs.css");
useStyles(import.meta.url, "../styles/imports.css");

export default class ImportPage extends Page {
  static title = "Import";

  async open() {
    const { source, run } = this.params;
    fill(this, this.heading(source), h("div.card", waiting(5)));
    const progress = may("imports:read") ? await known(`/imports${at(source, "runs", run)}`, this.signal) : null;
    if (!progress) return new RunOfJobs(this).open();
    // The map is loaded on demand, because not every run has one.
    const { ServedRun } = await import("../parts/import-served.js");
    return new ServedRun(this, await api.get(`/imports${at(source)}`, {}, { signal: this.signal })).open(progress);
  }
}

/** null: the service knows no such import, or no such run. @param {string} path @param {AbortSignal} signal */
async function known(path, signal) {
  try {
    return await api.get(path, {}, { signal });
  } catch (error) {
    if (error instanceof ApiProblem && error.status === 404) return null;
    throw error;
  }
}
