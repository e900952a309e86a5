import { SandfarmError, errorOf } from "./errors.js";
import type { Problem, Route } from "./schema.js";
import { addressOf, pathOf, queryOf, type Query } from "./address.js";
import { VERSION } from "./version.js";

/** Seconds that a farm holds a request at most. */
export const MAX_WAIT = 60;

const MAX_PROBLEM_BYTES = 64 << 10;

/** What a body may be. Streams are sent as they come, and such a request is not repeated. Browsers stream bodies over HTTP/2 only. */
export type Content = string | Uint8Array<ArrayBuffer> | ArrayBuffer | Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;

/** How to reach a farm. */
export interface ClientOptions {
  /** Address such as `http://127.0.0.1:8000`, with or without `/v1`. Default: `SANDFARM_URL`, or this address. */
  url?: string;
  /** Default: `SANDFARM_API_KEY`, or the key in the file `SANDFARM_API_KEY_FILE`. With an empty key none is sent. */
  apiKey?: string;
  /** Milliseconds to wait for an answer, beyond the time that the farm was asked to hold it. Default 30 000. */
  timeout?: number;
  /** How often a request is repeated. Default 3. */
  retries?: number;
  /** Milliseconds: if the farm asks for a longer pause, the error is thrown instead. Default 30 000. */
  maxPause?: number;
  /** Milliseconds for which waits and streams continue while the farm does not answer, as when it restarts. Default 60 000. */
  outage?: number;
  /** Used instead of the global `fetch`, such as for proxies. */
  fetch?: typeof globalThis.fetch;
}

/** One request to the farm. */
export interface Call {
  route: Route;
  /** Values of the names in braces; `path` may have slashes. */
  params?: Record<string, string>;
  query?: Query;
  headers?: Record<string, string>;
  /** Sent as JSON. */
  body?: unknown;
  /** Sent as it is. */
  content?: Content;
  /** Seconds that the farm may hold the answer; negative: the default of the route. */
  wait?: number;
  /** Idempotency-Key of a POST. Empty: a random one. */
  key?: string | undefined;
  /** The farm knows no key for it: it is repeated only if it cannot have arrived. */
  once?: boolean;
  /** Milliseconds for which it is repeated at least, once it may have arrived. */
  patience?: number;
  signal?: AbortSignal | undefined;
}

/** What Node.js, Deno and Bun have and browsers lack. */
const host = (globalThis as { process?: Host }).process;
interface Host {
  env?: Record<string, string | undefined>;
  platform?: string;
  getBuiltinModule?(name: "node:fs"): { statSync(path: string): { mode: number }; readFileSync(path: string, encoding: "utf8"): string };
}

/** The API key in a file, which other users must not be able to read. */
function keyIn(path: string | undefined): string {
  if (!path) return "";
  const fs = host?.getBuiltinModule?.("node:fs");
  if (!fs) throw invalid("SANDFARM_API_KEY_FILE cannot be read here: set SANDFARM_API_KEY, or give apiKey");
  if (host?.platform !== "win32" && fs.statSync(path).mode & 0o077) throw invalid(`the key file ${path} can be used by other users of this machine: run chmod 600 on it`);
  return fs.readFileSync(path, "utf8");
}

/** HTTP to one farm. */
export class Transport {
  readonly url: string;
  readonly outage: number;
  readonly #key: string;
  readonly #timeout: number;
  readonly #retries: number;
  readonly #maxPause: number;
  readonly #fetch: typeof globalThis.fetch;

  constructor(options: ClientOptions) {
    const env = host?.env ?? {};
    this.url = addressOf(options.url || env.SANDFARM_URL || "http://127.0.0.1:8000");
    this.#key = (options.apiKey ?? (env.SANDFARM_API_KEY || keyIn(env.SANDFARM_API_KEY_FILE))).trim();
    if (!/^[\x21-\x7e]*$/.test(this.#key)) throw invalid("the API key (SANDFARM_API_KEY, or apiKey) must be printable ASCII without spaces");
    this.#timeout = options.timeout ?? 30_000;
    this.#retries = Math.max(options.retries ?? 3, 0);
    this.#maxPause = options.maxPause ?? 30_000;
    this.outage = options.outage ?? 60_000;
    this.#fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
  }

  /** Makes a request and returns the JSON of the answer; undefined if it has no body. */
  async json<T>(call: Call): Promise<T> {
    return (await this.answer<T>(call)).data;
  }

  /** Makes a request and returns status, headers and JSON of the answer. */
  async answer<T>(call: Call): Promise<{ status: number; headers: Headers; data: T }> {
    return this.#repeat(call, async () => {
      const [response, limit] = await this.#send(call);
      try {
        const text = await response.text();
        if (!text && response.status !== 302) return { status: response.status, headers: response.headers, data: undefined as T };
        return { status: response.status, headers: response.headers, data: JSON.parse(text) as T };
      } catch (error) {
        if (error instanceof SyntaxError) throw this.#notSandfarm(call, response);
        throw limit.reason(error);
      } finally {
        limit.end();
      }
    });
  }

  /** Makes a request and returns the answer with its body unread. Only `signal` limits reading it. */
  async open(call: Call): Promise<Response> {
    return this.#repeat(call, async () => {
      const [response, limit] = await this.#send(call);
      limit.end();
      return response;
    });
  }

  /** Fetches a link that needs no key, with Range headers. */
  async fetch(link: string, headers: Record<string, string>, signal?: AbortSignal): Promise<Response> {
    const limit = new TimeLimit(this.#timeout, signal);
    try {
      const response = await this.#fetch(link, { headers, signal: limit.signal, credentials: "omit" });
      if (response.status >= 400) throw await problemOf(response);
      return response;
    } catch (error) {
      throw this.#failure(limit.reason(error));
    } finally {
      limit.end();
    }
  }

  /** The address and the headers, with the key, of a path below the farm's address. */
  request(path: string): { url: string; headers: Record<string, string> } {
    return { url: this.url + path, headers: this.#key ? { Authorization: `Bearer ${this.#key}` } : {} };
  }

  /** `fetch` as the caller gave it, with a request's address and headers unchanged. */
  raw(url: string, init: RequestInit): Promise<Response> {
    return this.#fetch(url, init);
  }

  async #send(call: Call): Promise<[Response, TimeLimit]> {
    const [method, path] = call.route.split(" ") as [string, string];
    const wait = call.wait ?? 0;
    const { url, headers } = this.request(pathOf(path, call.params ?? {}) + queryOf({ ...call.query, ...(wait > 0 && { wait: Math.min(wait, MAX_WAIT) }) }));
    Object.assign(headers, { Accept: "application/json", "User-Agent": `sandfarm-typescript/${VERSION}` });
    if (call.key) headers["Idempotency-Key"] = call.key;
    if (call.body !== undefined) headers["Content-Type"] = "application/json";
    const init: RequestInit & { duplex?: "half" } = { method, headers: { ...headers, ...call.headers }, redirect: "manual" };
    if (call.body !== undefined) init.body = JSON.stringify(call.body);
    if (call.content !== undefined) {
      init.body = bodyOf(call.content);
      if (init.body instanceof ReadableStream) init.duplex = "half";
    }
    // An upload takes as long as it takes, but the signal of the caller ends it.
    const limit = new TimeLimit(call.content === undefined ? this.#timeout + (wait < 0 ? MAX_WAIT : wait) * 1000 : 0, call.signal);
    try {
      const response = await this.#fetch(url, { ...init, signal: limit.signal });
      if (response.status >= 400) throw await problemOf(response, this.url);
      if (response.type === "opaqueredirect" || (response.status >= 300 && response.status < 400 && response.status !== 304 && response.status !== 302)) {
        throw this.#notSandfarm(call, response);
      }
      return [response, limit];
    } catch (error) {
      limit.end();
      throw limit.reason(error);
    }
  }

  async #repeat<T>(call: Call, send: () => Promise<T>): Promise<T> {
    const method = call.route.split(" ")[0];
    if (method === "POST" && !call.key && !call.once) call.key = newKey();
    if ("content" in call && !isContent(call.content)) throw invalid(`content is a string, bytes, a Blob or a stream, not ${kindOf(call.content)}`);
    const repeatable = !isStream(call.content);
    const idempotent = (["GET", "HEAD", "PUT"].includes(method ?? "") && !call.once) || Boolean(call.key);
    let until = 0;
    for (let attempt = 1; ; attempt++) {
      let failure: SandfarmError;
      let again: boolean;
      try {
        return await send();
      } catch (error) {
        call.signal?.throwIfAborted();
        failure = this.#failure(error);
        if (tlsError(error)) throw failure;
        const arrived = failure.status > 0 || !isConnectError(error);
        if (arrived && until === 0) until = Date.now() + (call.patience ?? 0);
        if (failure.status === 0) again = failure.code === "unavailable" && !(error instanceof TimedOut) && (idempotent || !arrived);
        else if (failure.quota && failure.retryAfter === 0) again = false; // the quota is too small for the request
        else again = failure.status === 429 || ([502, 503, 504].includes(failure.status) && idempotent);
      }
      const moreTime = this.#retries > 0 && Date.now() < until;
      if (!again || !repeatable || failure.retryAfter * 1000 > this.#maxPause || (attempt > this.#retries && !moreTime)) throw failure;
      await pause(Math.max(backoff(attempt), failure.retryAfter * 1000), call.signal);
    }
  }

  #failure(error: unknown): SandfarmError {
    if (error instanceof SandfarmError) return error;
    let why = `the connection to the farm at ${this.url} broke: ${reasonOf(error)}`;
    if (error instanceof TimedOut) why = `the farm at ${this.url} did not answer in time`;
    else if (tlsError(error)) why = `no TLS with ${this.url} (${tlsError(error)}): check its certificate, or write http:// if the farm has none`;
    else if (isConnectError(error)) why = `no farm answers at ${this.url}: check that it runs and that SANDFARM_URL is right (${reasonOf(error)})`;
    return new SandfarmError(why, { code: "unavailable", cause: error });
  }

  #notSandfarm(call: Call, response: Response): SandfarmError {
    return new SandfarmError(`the answer to ${call.route} is not from a Sandfarm (HTTP ${response.status}): check the address ${this.url}`, { code: "internal" });
  }
}

/** Milliseconds to wait before a retry: 100 to 2000, with jitter so that clients do not retry in step. */
export function backoff(attempt: number): number {
  const full = Math.min(100 * 2 ** Math.min(attempt - 1, 10), 2000);
  return full / 2 + (Math.random() * full) / 2;
}

/** Waits; rejects with the reason of the signal when it is aborted. */
export function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((done, failed) => {
    if (signal?.aborted) return failed(signal.reason as Error);
    const stop = (): void => (clearTimeout(timer), failed(signal?.reason as Error));
    const timer = setTimeout(() => (signal?.removeEventListener("abort", stop), done()), milliseconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** A new Idempotency-Key: unique, and no secret, since Node 18 has no global `crypto`. */
export function newKey(): string {
  const { crypto } = globalThis as { crypto?: Crypto };
  const bytes = crypto?.getRandomValues(new Uint8Array(16)) ?? Uint8Array.from({ length: 16 }, () => Math.random() * 256);
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** An error for a call that is wrong before anything is sent. */
export function invalid(message: string): SandfarmError {
  return new SandfarmError(message, { code: "invalid" });
}

/** The time limit of a request has passed. */
class TimedOut extends Error {}

/** Ends a request after some time, or through the caller's signal. */
export class TimeLimit {
  readonly signal: AbortSignal;
  readonly #own = new AbortController();
  readonly #milliseconds: number;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** 0 milliseconds: no limit. */
  constructor(milliseconds: number, signal?: AbortSignal) {
    this.#milliseconds = milliseconds;
    this.signal = signal ? AbortSignal.any([signal, this.#own.signal]) : this.#own.signal;
    this.restart();
  }

  /** Counts from now on. */
  restart(): void {
    this.end();
    if (this.#milliseconds > 0) this.#timer = setTimeout(() => this.#own.abort(new TimedOut("no answer in time")), this.#milliseconds);
  }

  /** Ends the limit, not the request. */
  end(): void {
    clearTimeout(this.#timer);
  }

  /** Why it really ended: what `fetch` throws after an abort differs between systems. */
  reason(error: unknown): unknown {
    return this.#own.signal.aborted ? this.#own.signal.reason : error;
  }
}

const connectErrors = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT", "ConnectionRefused"]);

/** Whether nothing was sent. Where the system does not say, false. */
function isConnectError(error: unknown): boolean {
  const { code, cause } = (error ?? {}) as { code?: string; cause?: { code?: string; message?: string; errors?: { code?: string }[] } };
  if (cause?.message === "bad port") return true; // one that the fetch standard forbids, such as 1 or 9
  return connectErrors.has(code ?? cause?.code ?? cause?.errors?.[0]?.code ?? "");
}

/** Why a request failed: "fetch failed" of Node.js has that in its cause. */
function reasonOf(error: unknown): string {
  const { message, cause } = (error ?? {}) as { message?: string; cause?: { message?: string; errors?: { message?: string }[] } };
  return cause?.message || cause?.errors?.[0]?.message || message || String(error);
}

/** The code of an error of TLS, which another try does not mend; "" for other errors. */
function tlsError(error: unknown): string {
  const { code, cause } = (error ?? {}) as { code?: string; cause?: { code?: string } };
  const found = code ?? cause?.code ?? "";
  return /^ERR_(SSL|TLS)_|CERT|UNABLE_TO_VERIFY/.test(found) ? found : "";
}

function isContent(content: unknown): boolean {
  if (typeof content !== "object" || content === null) return typeof content === "string";
  return content instanceof Uint8Array || content instanceof ArrayBuffer || content instanceof Blob || content instanceof ReadableStream || Symbol.asyncIterator in content;
}

/** What a value is that is no content, and what makes some of it. */
export function kindOf(value: unknown): string {
  if (typeof value !== "object" || value === null) return String(value);
  return `${Array.isArray(value) ? "an array" : "an object"}: JSON.stringify(…) makes text of data`;
}

function isStream(content: Content | undefined): content is ReadableStream<Uint8Array> | AsyncIterable<Uint8Array> {
  return typeof content === "object" && !(content instanceof Uint8Array || content instanceof ArrayBuffer || content instanceof Blob);
}

function bodyOf(content: Content): BodyInit {
  if (!isStream(content) || content instanceof ReadableStream) return content;
  const source = content[Symbol.asyncIterator]();
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      const { done, value } = await source.next();
      if (done) controller.close();
      else controller.enqueue(value);
    },
    async cancel() {
      await source.return?.();
    },
  });
}

async function problemOf(response: Response, url?: string): Promise<SandfarmError> {
  let problem: Partial<Problem> = {};
  try {
    const found = JSON.parse(await textOf(response)) as unknown;
    if (typeof found === "object" && found !== null && !Array.isArray(found)) problem = found;
  } catch {
    // a page of a proxy
  }
  const requestId = response.headers.get("X-Request-Id") ?? "";
  const error = errorOf(response.status, problem, response.statusText, requestId, retryAfter(response.headers.get("Retry-After") ?? ""));
  if (url && !problem.code && !requestId) error.message += `. The answer is not from a Sandfarm: check the address ${url}`;
  return error;
}

/** The first part of a body: an error page of a proxy may have any size. */
async function textOf(response: Response): Promise<string> {
  const reader = response.body?.getReader();
  const decoder = new TextDecoder();
  let text = "";
  while (reader && text.length < MAX_PROBLEM_BYTES) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    text += decoder.decode(value, { stream: true });
  }
  await reader?.cancel();
  return text;
}

function retryAfter(value: string): number {
  if (/^\d+$/.test(value)) return Math.min(Number(value), 24 * 3600);
  const at = Date.parse(value);
  return Number.isNaN(at) ? 0 : Math.max((at - Date.now()) / 1000, 0);
}
