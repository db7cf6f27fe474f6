/** Requests to the service, and its errors. The API key is never stored here: the browser has a session cookie. */

const BASE = "/v1";
const SECONDS_MAX = 15;

/** `seconds`: how long to wait. @typedef {{signal?: AbortSignal, headers?: Record<string, string>, seconds?: number}} Options */
/** @typedef {Record<string, string | number | boolean | null | undefined>} Query */

/** An RFC 9457 problem of the service: `code` is stable, `message` is for people. */
export class ApiProblem extends Error {
  /** @param {number} status @param {any} body @param {Headers} [headers] */
  constructor(status, body, headers) {
    super(body?.detail ?? `The service returned status ${status}.`);
    this.status = status;
    this.code = body?.code ?? "failed";
    this.title = body?.title ?? "Problem";
    /** @type {{pointer: string, detail: string}[]} */
    this.errors = body?.errors ?? [];
    this.requestId = body?.request_id ?? headers?.get("x-request-id") ?? "";
    this.retrySeconds = Number(headers?.get("retry-after")) || 0;
    this.body = body;
  }
}

/** Dispatches "login" when the session is missing or has ended. */
export const doorbell = new EventTarget();

/** The difference between the service's clock and the browser's, if it is significant: responses have whole seconds. */
export const clock = { aheadMs: 0 };
const AHEAD_MS_MIN = 2_000;

/** Who we are: {tenant, role, scopes, csrf_token …}; null before we know. @type {any} */
let session = null;

export const api = {
  /** @param {string} path below /v1 @param {Query} [query] @param {Options} [options] */
  get: (path, query, options) => ask("GET", path + queryOf(query), undefined, options),
  /** @param {string} path @param {any} [body] @param {Options} [options] */
  post: (path, body, options) => ask("POST", path, body ?? {}, options),
  /** @param {string} path @param {any} body @param {Options} [options] */
  put: (path, body, options) => ask("PUT", path, body, options),
  /** @param {string} path @param {Options} [options] */
  delete: (path, options) => ask("DELETE", path, undefined, options),
};

/** The parts of a path are data: `at("limits", name)` @param {...string} parts */
export function at(...parts) {
  return parts.map((part) => `/${encodeURIComponent(part)}`).join("");
}

/** @param {Query} [query] */
export function queryOf(query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value != null && value !== "");
  return given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
}

/** @param {string} method @param {string} path @param {any} body @param {Options} [options] */
async function ask(method, path, body, options = {}) {
  const response = await fetched(BASE + path, {
    method,
    headers: headersOf(method, body, options.headers),
    body: body === undefined ? undefined : JSON.stringify(body),
    credentials: "same-origin",
    signal: within(options.signal, options.seconds),
  });
  setClock(response.headers.get("date"));
  const answer = await bodyOf(response);
  if (response.ok) return answer;
  const problem = new ApiProblem(response.status, answer, response.headers);
  if (problem.status === 401 && path !== "/session") doorbell.dispatchEvent(new Event("login"));
  throw problem;
}

/** @param {string | null} date */
function setClock(date) {
  const ahead = Date.parse(date ?? "") + 500 - Date.now();
  if (!Number.isNaN(ahead)) clock.aheadMs = Math.abs(ahead) < AHEAD_MS_MIN ? 0 : ahead;
}

/** @param {string} url @param {RequestInit} init */
async function fetched(url, init) {
  try {
    return await fetch(url, init);
  } catch (error) {
    if (/** @type {any} */ (error).name === "AbortError") throw error;
    throw new ApiProblem(0, { code: "unreachable", title: "No response", detail: "The service does not respond." });
  }
}

/** Every request ends: aborted by its caller, or by a timeout. @param {AbortSignal} [signal] @param {number} [seconds] */
function within(signal, seconds = SECONDS_MAX) {
  const deadline = AbortSignal.timeout(seconds * 1000);
  return signal ? AbortSignal.any([signal, deadline]) : deadline;
}

/** @param {string} method @param {any} body @param {Record<string, string>} [given] */
function headersOf(method, body, given) {
  /** @type {Record<string, string>} */
  const headers = { Accept: "application/json", ...given };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET" && session?.csrf_token) headers["X-CSRF-Token"] = session.csrf_token;
  return headers;
}

/** @param {Response} response */
async function bodyOf(response) {
  const raw = await response.text();
  try {
    return raw ? JSON.parse(raw) : null;
  } catch {
    return null;
  }
}

/** The caller's identity; null: a key is needed. A service without authentication needs none. */
export async function whoAmI() {
  try {
    session = await api.get("/session");
  } catch (error) {
    const status = error instanceof ApiProblem ? error.status : 0;
    if (status !== 401 && status !== 404) throw error;
    session = status === 404 ? { role: "operator", tenant: "default", scopes: null } : null;
  }
  return session;
}

/** @param {string} key */
export async function logIn(key) {
  session = await api.post("/session", { key });
  return session?.csrf_token ? session : whoAmI();
}

export async function logOut() {
  await api.delete("/session");
  session = null;
}

export function me() {
  return session;
}

/** @param {string} scope */
export function may(scope) {
  return session != null && (session.scopes == null || session.scopes.includes(scope));
}

/** For people: what went wrong, with the place of it. @param {unknown} error @returns {string} */
export function said(error) {
  if (error instanceof ApiProblem && error.requestId && error.status >= 500) {
    return `${error.message} (request ${error.requestId})`;
  }
  return error instanceof Error ? error.message : String(error);
}

/** Ended because the user left the page; not an error. @param {unknown} error */
export function isLeft(error) {
  return /** @type {any} */ (error)?.name === "AbortError";
}
