/** service ─► [events] ─► pages: over WebSocket, if that is blocked over an event stream, otherwise by polling.
 *
 * All transports bring the same frames, {seq, events}; `seq` is the number to resume with, over any transport, so that
 * nothing is lost. An event is the present state of something: {kind: "lane", lane: {…}}, or totals, job, limit, budget
 * and import; with `gone: true` it no longer exists. {kind: "reset"} means: discard the present state, a snapshot
 * follows.
 *
 *   const live = new Live();
 *   live.addEventListener("news", ({detail}) => …);   // also by kind: "lane", "job", …
 *   live.addEventListener("way", () => mark(live.way)); // "live", "stream", "polling", "offline"
 *   live.follow([id]);                                  // jobs of which every change is needed
 *   live.start();
 */

/** @typedef {"" | "live" | "stream" | "polling" | "offline"} Way */
/** @typedef {{kind: string, gone?: boolean, [name: string]: any}} News */
/** @typedef {{seq: number | null, events: News[]}} Frame */
/** How a transport ended: whether it ever delivered a frame, and whether to reconnect immediately.
 * @typedef {{worked: boolean, soon?: boolean, expired?: boolean}} End */

const BASE = "/v1";
const OPEN_MS = 5_000;
const SILENT_MS = 40_000;
const POLL_SECONDS = 10;
/** The minimal time between two polls. */
const POLL_MS = 1_000;
const BACKOFF_MS = 500;
const BACKOFF_MS_MAX = 15_000;
/** The time after which a better transport is tried again. */
const BETTER_MS = 60_000;
const FOLLOW_MAX = 200;

export class Live extends EventTarget {
  /** How news come at present; "" before the first. @type {Way} */
  way = "";
  /** Up to where we were told. @type {number | null} */
  seq = null;
  /** @type {string[]} */
  #follow = [];
  #running = false;
  #failures = 0;
  /** Ends what is under way at present. @type {(() => void) | null} */
  #cut = null;
  /** Ends a pause. @type {(() => void) | null} */
  #resume = null;
  /** @type {WebSocket | null} */
  #socket = null;

  start() {
    if (this.#running) return;
    this.#running = true;
    addEventListener("online", this.#again);
    this.#run();
  }

  stop() {
    this.#running = false;
    removeEventListener("online", this.#again);
    this.#cut?.();
    this.#again();
  }

  /** The jobs of which every change is wanted, in the place of those before. @param {Iterable<string>} ids */
  follow(ids) {
    const wanted = [...new Set(ids)].slice(0, FOLLOW_MAX);
    if (wanted.join() === this.#follow.join()) return;
    this.#follow = wanted;
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify({ follow: wanted }));
    else if (this.way === "stream") this.#cut?.();
  }

  #again = () => this.#resume?.();

  async #run() {
    while (this.#running) {
      const end = await this.#best();
      if (!this.#running) return;
      if (end.expired) return this.#expire();
      if (end.worked) this.#failures = 0;
      else this.#setWay("offline");
      await this.#pause(end);
    }
  }

  /** The first way that works, until it ends. @returns {Promise<End>} */
  async #best() {
    for (const way of [this.#bySocket, this.#byStream, this.#byPolling]) {
      const end = await way.call(this);
      if (end.worked || end.expired || !this.#running) return end;
    }
    return { worked: false };
  }

  /** @returns {Promise<End>} */
  #bySocket() {
    const address = new URL(`${BASE}/live${this.#query()}`, location.href);
    address.protocol = address.protocol.replace("http", "ws");
    return new Promise((ended) => {
      const socket = (this.#socket = new WebSocket(address));
      let worked = false;
      const end = (/** @type {boolean} */ soon) => {
        watch.stop();
        this.#socket = null;
        socket.onclose = socket.onmessage = null;
        socket.close();
        ended({ worked, soon });
      };
      const watch = new Watchdog(() => end(false));
      this.#cut = () => end(true);
      socket.onmessage = ({ data }) => {
        if (!worked) this.#opened("live");
        worked = true;
        watch.alive();
        this.#hear(JSON.parse(data));
      };
      socket.onclose = ({ code }) => end(code === 1013 || code === 1012);
    });
  }

  /** @returns {Promise<End>} */
  #byStream() {
    return new Promise((ended) => {
      const stream = new EventSource(`${BASE}/events${this.#query()}`);
      let worked = false;
      const end = (/** @type {boolean} */ soon) => {
        watch.stop();
        clearTimeout(better);
        stream.close();
        ended({ worked, soon });
      };
      const watch = new Watchdog(() => end(false));
      const better = setTimeout(() => end(true), BETTER_MS);
      this.#cut = () => end(true);
      stream.onmessage = ({ data }) => {
        if (!worked) this.#opened("stream");
        worked = true;
        watch.alive();
        this.#hear(JSON.parse(data));
      };
      // EventSource would reconnect itself, but only with this transport, and all clients at the same moment.
      stream.onerror = () => end(false);
    });
  }

  /** @returns {Promise<End>} */
  async #byPolling() {
    const until = Date.now() + BETTER_MS;
    const leaving = new AbortController();
    this.#cut = () => leaving.abort();
    let worked = false;
    while (this.#running && Date.now() < until) {
      const frame = await this.#poll(leaving.signal, worked ? POLL_SECONDS : 0);
      if (typeof frame === "number") return { worked, expired: frame === 401 };
      if (!worked) this.#opened("polling");
      worked = true;
      this.#hear(frame);
      await this.#sleep(jittered(POLL_MS));
    }
    return { worked, soon: true };
  }

  /** A frame, or the status that came instead. @param {AbortSignal} leaving @param {number} seconds
   * @returns {Promise<Frame | number>} */
  async #poll(leaving, seconds) {
    try {
      const signal = AbortSignal.any([leaving, AbortSignal.timeout(OPEN_MS + seconds * 1_000)]);
      const query = this.#query({ wait_seconds: String(seconds) });
      const answer = await fetch(`${BASE}/events${query}`, { credentials: "same-origin", signal });
      return answer.ok ? await answer.json() : answer.status;
    } catch {
      return 0;
    }
  }

  /** @param {Record<string, string>} [more] */
  #query(more = {}) {
    const query = new URLSearchParams(more);
    if (this.seq !== null) query.set("after", String(this.seq));
    for (const id of this.#follow) query.append("follow", id);
    return query.size ? `?${query}` : "";
  }

  /** @param {Frame} frame */
  #hear(frame) {
    for (const news of frame.events) {
      this.dispatchEvent(new CustomEvent("news", { detail: news }));
      this.dispatchEvent(new CustomEvent(news.kind, { detail: news }));
    }
    // Only after the whole frame: an interrupted frame is sent again.
    if (frame.seq !== null) this.seq = frame.seq;
  }

  /** @param {Way} way */
  #opened(way) {
    this.#failures = 0;
    this.#setWay(way);
  }

  /** @param {Way} way */
  #setWay(way) {
    if (way === this.way) return;
    this.way = way;
    this.dispatchEvent(new CustomEvent("way", { detail: way }));
  }

  #expire() {
    this.#running = false;
    this.#setWay("offline");
    this.dispatchEvent(new CustomEvent("expired"));
  }

  /** Those who were cut off together shall not come back together. @param {End} end */
  #pause({ worked, soon }) {
    if (soon) return this.#sleep(jittered(BACKOFF_MS / 2));
    const longest = Math.min(BACKOFF_MS * 2 ** this.#failures, BACKOFF_MS_MAX);
    this.#failures += worked ? 0 : 1;
    return this.#sleep(jittered(longest));
  }

  /** @param {number} ms */
  #sleep(ms) {
    return new Promise((resume) => {
      const timer = setTimeout(() => resume(null), ms);
      this.#resume = () => {
        clearTimeout(timer);
        resume(null);
      };
    });
  }
}

/** A connection without any frame, not even a heartbeat, is broken. */
class Watchdog {
  /** @param {() => void} bark */
  constructor(bark) {
    this.bark = bark;
    this.timer = setTimeout(bark, OPEN_MS);
  }

  alive() {
    clearTimeout(this.timer);
    this.timer = setTimeout(this.bark, SILENT_MS);
  }

  stop() {
    clearTimeout(this.timer);
  }
}

/** @param {number} ms */
function jittered(ms) {
  return ms * (0.5 + Math.random());
}
