// The farm's API, as the page calls it. Paths are relative, so the dashboard works behind any prefix.

// Problem is an error that the farm answered with, or that kept it from answering (status 0).
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `HTTP ${status}`);
    this.status = status;
    this.code = body.code || "internal";
    this.requestId = body.request_id || "";
    this.quota = body.quota;
    this.errors = body.errors || [];
    this.parts = body.parts; // of a farm that is not ready
  }
}

// base is the path under which the browser sees the farm: "/" or the prefix of a proxy.
export const base = new URL(".", document.baseURI).pathname;

// reach are called with whether the farm answers, whenever a call shows that this has changed.
const reach = new Set();
let reached = true;
export function whenReached(f) {
  reach.add(f);
  return () => reach.delete(f);
}
function answered(yes) {
  if (reached === yes) return;
  reached = yes;
  for (const f of reach) f(yes);
}

// onLoggedOut is called when the farm wants a key, or may want one.
let onLoggedOut = () => {};
export function whenLoggedOut(f) { onLoggedOut = f; }

// target makes a path below /v1 of literal segments and a query; what is undefined or empty in the query is left out.
export function target(path, query) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query || {})) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined && one !== null && one !== "") params.append(name, one);
  }
  return path + (params.size ? `?${params}` : "");
}

// segments escapes a path of a file, and keeps its slashes.
export const segments = (path) => path.split("/").map(encodeURIComponent).join("/");

// send calls the farm and returns its answer. It throws a Problem unless the answer is a success.
export async function send(method, path, { body, raw, query, signal, headers } = {}) {
  let answer;
  try {
    answer = await fetch(target(path, query), {
      method, signal, credentials: "same-origin", redirect: "follow", cache: "no-store",
      headers: { ...(body !== undefined ? { "Content-Type": "application/json" } : {}), ...headers },
      body: body !== undefined ? JSON.stringify(body) : raw,
    });
  } catch (error) {
    if (signal && signal.aborted) throw error;
    answered(false);
    throw new Problem(0, { code: "unavailable", detail: "" });
  }
  answered(true);
  if (!answer.ok) {
    let problem = {};
    try { problem = await answer.json(); } catch { /* not the farm's own answer */ }
    if (answer.status === 401 && path !== "session") onLoggedOut();
    throw new Problem(answer.status, problem);
  }
  return answer;
}

// call is send for JSON; null if the answer has no body.
export async function call(method, path, options) {
  const answer = await send(method, path, options);
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

// logOut ends the session of the browser, and forgets what was typed here.
export async function logOut() {
  await call("DELETE", "session", { query: { path: base } });
  sessionStorage.clear();
  onLoggedOut();
}

export const get = (path, query, signal) => call("GET", path, { query, signal });
export const post = (path, body, query) => call("POST", path, { body, query });
