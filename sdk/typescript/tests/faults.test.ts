// What the package does when a farm, or the way to it, fails: each test has a server of its own.
import assert from "node:assert/strict";
import { once } from "node:events";
import { chmodSync, mkdtempSync, writeFileSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { Client, ResultError, SandfarmError, textOf, type JobEvent } from "sandfarm";

type Answer = (request: IncomingMessage, response: ServerResponse, body: string) => void;

/** A server that answers the first request with the first function, and so on; the last one answers all others. */
async function serve(t: TestContext, ...answers: Answer[]): Promise<{ farm: Client; seen: IncomingMessage[]; url: string }> {
  const seen: IncomingMessage[] = [];
  const server = createServer((request, response) => {
    const answer = answers[Math.min(seen.push(request), answers.length) - 1]!;
    let body = "";
    request.on("data", (part) => (body += String(part))).on("end", () => answer(request, response, body));
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => (server.closeAllConnections(), server.close()));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return { farm: new Client({ url, apiKey: "key" }), seen, url };
}

const json = (status: number, body: object, headers = {}): Answer => (_, response) => response.writeHead(status, { "X-Request-Id": "req_1", ...headers }).end(JSON.stringify(body));
const refuse = (status: number, code: string, headers = {}): Answer => json(status, { status, code, detail: "no", request_id: "req_1" }, headers);
const drop: Answer = (request) => request.socket.destroy();
const done = { id: "job_1", sandbox_id: "sbx_1", kind: "execute", state: "completed", result: { stdout: "1\n", exit_code: 0, results: [] } };

test("what is no content is refused before a request", async () => {
  const farm = new Client({ url: "http://127.0.0.1:1", apiKey: "" });
  const box = farm.sandbox("sbx_1");
  const wrong = (value: unknown) => value as string;
  for (const [value, text] of [[{ a: 1 }, "an object: JSON.stringify(…) makes text of data"], [[1, 2], "an array: JSON.stringify(…) makes text of data"], [undefined, "undefined"], [5, "5"]] as const) {
    for (const write of [() => box.files.write("a", wrong(value)), () => box.fs.write("a", wrong(value)), () => farm.run("1", { files: { a: wrong(value) } })]) {
      await assert.rejects(write, (error: SandfarmError) => error.code === "invalid" && error.message.endsWith(`not ${text}`));
    }
  }
  for (const submit of [farm.run.bind(farm), farm.submit.bind(farm)]) {
    const files = [{ path: "a", content: "1" }] as unknown as Record<string, string>;
    await assert.rejects(submit("1", { files }), (error: SandfarmError) => error.code === "invalid" && error.message.endsWith("it is an array"));
  }
});

test("a request that starts a job is repeated with its key", async (t) => {
  const { farm, seen } = await serve(t, drop, refuse(503, "unavailable", { "Retry-After": "1" }), refuse(429, "exhausted", { "Retry-After": new Date().toUTCString() }), json(200, done));
  assert.equal((await farm.sandbox("sbx_1").run("1")).stdout, "1\n");
  const keys = new Set(seen.map(({ headers }) => headers["idempotency-key"]));
  assert.equal(seen.length, 4);
  assert.equal(keys.size, 1);
  assert.ok([...keys][0]);
  assert.equal(seen[0]?.headers.authorization, "Bearer key");
  assert.equal(seen[0]?.url, "/v1/sandboxes/sbx_1/execute?wait=60");
});

test("a sandbox without a package that it was to have is closed", async (t) => {
  const packages = [{ name: "six", status: "installed" }, { name: "nope", status: "failed", message: "there is no nope" }];
  const created = { sandbox: { id: "sbx_1" }, job: { ...done, kind: "create", result: { packages, notes: [] } } };
  const { farm, seen } = await serve(t, json(201, created), json(200, done), json(201, created));
  await assert.rejects(farm.create({ packages: ["six", "nope"] }), (error) => error instanceof ResultError && error.message === "there is no nope");
  assert.equal((await farm.create({ packages: ["six", "nope"], check: false })).id, "sbx_1");
  assert.deepEqual(seen.map(({ method }) => method), ["POST", "DELETE", "POST"]);
});

test("an address alone is refused", () => {
  for (const address of ["http://127.0.0.1:8000", new URL("http://127.0.0.1:8000")]) {
    assert.throws(() => new Client(address as object), { name: "TypeError", message: /new Client\(\{ url \}\)/ });
  }
});

test("an error of a result ends with its notes", async (t) => {
  const notes = ["Install it (POST /v1/sandboxes/sbx_1/packages with manager npm), or as a process (POST …/processes with stdin).", "Or else."];
  const results = {
    "ModuleNotFoundError: no six": { exit_code: 1, error: { name: "ModuleNotFoundError", value: "no six", traceback: [] }, notes },
    "six ended with exit code 3": { results: [{ command: "six", exit_code: 3, stdout: "", stderr: "" }], notes },
    "there is no six": { packages: [{ name: "six", status: "failed", message: "there is no six" }], notes },
  };
  const { farm } = await serve(t, ...Object.values(results).map((result) => json(200, { ...done, result })));
  const box = farm.sandbox("sbx_1");
  const calls = [() => box.run("import six", { check: true }), () => box.bash("six", { check: true }), () => box.packages.install("six")];
  for (const [i, message] of Object.keys(results).entries()) await assert.rejects(calls[i]!, { name: "ResultError", message: `${message}\nnote: Install it (sandbox.packages.install(…, { manager: "npm" })), or as a process (sandbox.processes.start(…, { stdin: true })).\nnote: Or else.` });
});

test("a refused key names its variable", async (t) => {
  const { farm } = await serve(t, json(401, { status: 401, code: "unauthorized", detail: "A valid API key is needed." }));
  await assert.rejects(farm.limits(), { code: "unauthorized", message: "A valid API key is needed. Set SANDFARM_API_KEY, or give apiKey." });
});

test("the key of a file is sent, unless others can read it", async (t) => {
  const { url, seen } = await serve(t, json(200, { items: [] }));
  const file = join(mkdtempSync(join(tmpdir(), "key-")), "key");
  const { SANDFARM_API_KEY: before } = process.env;
  t.after(() => (delete process.env.SANDFARM_API_KEY_FILE, before === undefined || (process.env.SANDFARM_API_KEY = before)));
  delete process.env.SANDFARM_API_KEY;
  process.env.SANDFARM_API_KEY_FILE = file;
  writeFileSync(file, "sf_file\n", { mode: 0o640 });
  assert.throws(() => new Client({ url }), /run chmod 600/);
  chmodSync(file, 0o600);
  await new Client({ url }).limits();
  await new Client({ url, apiKey: "sf_given" }).limits();
  assert.deepEqual(seen.map(({ headers }) => headers.authorization), ["Bearer sf_file", "Bearer sf_given"]);
});

test("the text of a result has the exit code where nothing was raised", () => {
  const result = { stdout: "out\n", stderr: "err\n", exit_code: 137, error: null, results: [], installed: [], notes: [] } as unknown as Parameters<typeof textOf>[0];
  assert.equal(textOf(result), "out\nerr\nexit code 137");
});

test("the text and the error of a result have the packages that could not be installed", async (t) => {
  const installed = [
    { name: "six", requested: "six", status: "installed", version: "1" },
    { name: "nope", requested: "nope", status: "failed", message: "there is no nope: ask by GET /v1/sandboxes/sbx_1/packages." },
    { name: "", requested: "./a", status: "failed" },
  ];
  const result = { stdout: "", stderr: "", exit_code: 1, error: { name: "E", value: "v", traceback: [] }, results: [], installed, notes: ["Or else."] };
  const commands = { results: [{ command: "nope", exit_code: 1, stdout: "", stderr: "" }], installed, notes: ["Or else."] };
  const { farm } = await serve(t, json(200, { ...done, result }), json(200, { ...done, result }), json(200, { ...done, result: commands }));
  const box = farm.sandbox("sbx_1");
  const ran = await box.run("import nope", { auto_install: true });
  const lines = "package nope: failed: there is no nope: ask by sandbox.packages.list().\npackage ./a: failed\nnote: Or else.";
  assert.equal(textOf(ran), "E: v\n" + lines);
  await assert.rejects(box.run("import nope", { check: true }), { name: "ResultError", message: "E: v\n" + lines });
  await assert.rejects(box.bash("nope", { check: true }), { name: "ResultError", message: "nope ended with exit code 1\n" + lines });
});

test("your own key is sent", async (t) => {
  const { farm, seen } = await serve(t, json(200, done));
  await farm.submit("1", { idempotencyKey: "mine" });
  assert.equal(seen[0]?.headers["idempotency-key"], "mine");
});

test("what may have arrived and has no key is not repeated, except after 429", async (t) => {
  const { farm, seen } = await serve(t, refuse(429, "exhausted"), drop);
  await assert.rejects(farm.sandbox("sbx_1").processes.start("ls"), { code: "unavailable", status: 0 });
  assert.equal(seen.length, 2);
});

test("a stream is not repeated", async (t) => {
  const { farm, seen } = await serve(t, refuse(503, "unavailable"));
  await assert.rejects(farm.sandbox("sbx_1").files.write("a", new Blob(["x"]).stream()), { code: "unavailable", status: 503 });
  assert.equal(seen.length, 1);
});

test("a pause that is too long is left to the caller", async (t) => {
  const { farm, seen } = await serve(t, refuse(429, "exhausted", { "Retry-After": "3600" }));
  await assert.rejects(farm.limits(), { code: "exhausted", retryAfter: 3600, requestId: "req_1" });
  assert.equal(seen.length, 1);
});

test("a quota that is too small is not asked again", async (t) => {
  const { farm, seen } = await serve(t, json(429, { code: "exhausted", detail: "never", quota: { name: "max_memory_mb", limit: 1024, used: 0 } }));
  await assert.rejects(farm.submit("1"), { code: "exhausted" });
  assert.equal(seen.length, 1);
});

test("retries end", async (t) => {
  const { url, seen } = await serve(t, refuse(503, "unavailable"));
  await assert.rejects(new Client({ url, retries: 2 }).limits(), { code: "unavailable" });
  assert.equal(seen.length, 3);
});

test("a farm that is not there is told from one that fails", async (t) => {
  const { url } = await serve(t, json(200, {}));
  const port = createServer().listen(0, "127.0.0.1");
  await once(port, "listening");
  const free = `http://127.0.0.1:${(port.address() as AddressInfo).port}`;
  await new Promise((closed) => port.close(closed));
  await assert.rejects(new Client({ url: free, retries: 0 }).limits(), /no farm answers at .*SANDFARM_URL is right \(.*ECONNREFUSED/);
  await assert.rejects(new Client({ url: "http://127.0.0.1:9", retries: 0 }).limits(), /no farm answers at http:\/\/127.0.0.1:9: .* is right \(bad port\)/);
  assert.throws(() => new Client({ url: "ftp://x" }), { code: "invalid" });
  assert.throws(() => new Client({ url, apiKey: "ke\ny" }), { code: "invalid" });
  assert.equal(new Client({ url: `${url}/v1/` }).url, url);
});

test("TLS with a farm that has none is told at once, and not tried again", async (t) => {
  const { url } = await serve(t, json(200, done));
  let calls = 0;
  const counted: typeof fetch = (...call) => (calls++, fetch(...call));
  await assert.rejects(new Client({ url: url.replace("http:", "https:"), fetch: counted }).limits(), /no TLS with https:.*write http:/);
  assert.equal(calls, 1);
});

test("an answer that is not from a farm is told", async (t) => {
  const { farm } = await serve(t, (_, response) => response.end("<html>"), (_, response) => response.writeHead(500).end("<html>"), (_, response) => response.writeHead(301, { Location: "https://elsewhere" }).end());
  for (let n = 0; n < 3; n++) await assert.rejects(farm.limits(), (error) => error instanceof SandfarmError && /not from a Sandfarm/.test(error.message));
});

test("the key is not sent to where a redirect leads", async (t) => {
  const other = await serve(t, json(200, {}));
  const { farm } = await serve(t, (_, response) => response.writeHead(307, { Location: other.url }).end());
  await assert.rejects(farm.limits(), { code: "internal" });
  assert.equal(other.seen.length, 0);
});

test("ids and paths cannot lead to another route", async (t) => {
  const { farm, seen } = await serve(t, json(200, done));
  await assert.rejects(async () => farm.jobs.get(".."), { code: "invalid" });
  await assert.rejects(async () => farm.jobs.get(""), { code: "invalid" });
  await farm.jobs.get("a/b?c");
  assert.deepEqual(seen.map(({ url }) => url), ["/v1/jobs/a%2Fb%3Fc"]);
});

const frames = (from: number, to: number): string => Array.from({ length: to - from }, (_, n) => `id: ${from + n}\nevent: stdout\ndata: {"text":"${from + n}"}\n\n`).join("");
const stream = { "Content-Type": "text/event-stream" };
const final = 'id: 99\nevent: state\ndata: {"state":"completed"}\n\n';

test("a stream of events goes on behind the last one that was complete", async (t) => {
  const { farm, seen } = await serve(
    t,
    (request, response) => response.writeHead(200, stream).write(`${frames(1, 3)}id: 3\nevent: stdout\nda`, () => request.socket.destroy()),
    drop,
    refuse(503, "unavailable"),
    (_, response) => response.writeHead(200, stream).end(`: heartbeat\n\n${frames(3, 5)}`),
    (_, response) => response.writeHead(200, stream).end(final.replaceAll("\n", "\r\n")),
  );
  const all: JobEvent[] = [];
  for await (const event of farm.jobs.events("job_1")) all.push(event);
  assert.deepEqual(all.map((event) => (event.name === "stdout" ? event.data.text : event.name)), ["1", "2", "3", "4", "state"]);
  assert.deepEqual(seen.map(({ headers }) => headers["last-event-id"]), [undefined, "2", "2", "2", "4"]);
});

test("a stream of events is not opened again where that is no use", async (t) => {
  const { farm, seen } = await serve(t, refuse(404, "not_found"));
  await assert.rejects(farm.jobs.events("job_1").next(), { code: "not_found" });
  assert.equal(seen.length, 1);
});

test("leaving the loop over events closes the connection", async (t) => {
  let closed: Promise<unknown> | undefined;
  const { farm } = await serve(t, (_, response) => {
    closed = once(response, "close");
    response.writeHead(200, stream).write(frames(1, 3));
  });
  for await (const event of farm.jobs.events("job_1")) if (event.id === "2") break;
  await closed;
});

test("characters that are cut between two chunks are whole", async (t) => {
  const bytes = Buffer.from(`id: 1\nevent: stdout\ndata: {"text":"wörld"}\n\n${final}`);
  const { farm } = await serve(t, (_, response) => {
    response.writeHead(200, stream).write(bytes.subarray(0, bytes.indexOf("ö") + 1), () => setImmediate(() => response.end(bytes.subarray(bytes.indexOf("ö") + 1))));
  });
  const first = await farm.jobs.events("job_1").next();
  assert.deepEqual(first.value?.data, { text: "wörld" });
});

test("a wait goes on while the farm restarts", async (t) => {
  const broken = Array.from({ length: 6 }, () => refuse(503, "unavailable"));
  const { url, seen } = await serve(t, ...broken, json(202, { ...done, state: "running" }), json(200, done));
  assert.equal((await new Client({ url, retries: 0 }).jobs.wait("job_1")).state, "completed");
  assert.equal(seen.length, 8);
});

test("a download goes on with the rest", async (t) => {
  const content = Buffer.from(Array.from({ length: 300_000 }, (_, n) => n % 251));
  const part = (from: number): Answer => (request, response) => {
    assert.equal(request.headers.range, from === 0 ? undefined : `bytes=${from}-`);
    const status = from === 0 ? 200 : 206;
    const headers = { "Content-Length": content.length - from, ...(from > 0 && { "Content-Range": `bytes ${from}-${content.length - 1}/${content.length}` }), ETag: '"v1"' };
    response.writeHead(status, headers).write(content.subarray(from, from + 100_000), () => (from < 200_000 ? request.socket.end() : response.end()));
  };
  const { farm, seen } = await serve(t, part(0), part(100_000), part(200_000));
  assert.deepEqual(Buffer.from(await farm.sandbox("sbx_1").fs.read("/a")), content);
  assert.deepEqual(seen.map(({ headers }) => headers["if-match"]), [undefined, '"v1"', '"v1"']);
});

test("an aborted call ends, whatever it does", async (t) => {
  const { farm, seen } = await serve(t, (_, response) => void response);
  const reason = new Error("enough");
  await assert.rejects(farm.limits({ signal: AbortSignal.abort(reason) }), (error) => error === reason);
  const stop = new AbortController();
  const hanging = farm.jobs.get("job_1", { signal: stop.signal });
  const answer = assert.rejects(hanging, (error) => error === reason);
  while (seen.length === 0) await new Promise(setImmediate);
  stop.abort(reason);
  await answer;
  const waiting = await serve(t, refuse(429, "exhausted", { "Retry-After": "20" }));
  const paused = new AbortController();
  const rejected = assert.rejects(waiting.farm.limits({ signal: paused.signal }), (error) => error === reason);
  while (waiting.seen.length === 0) await new Promise(setImmediate);
  paused.abort(reason);
  await rejected;
});

test("a farm that does not answer in time is unavailable", async (t) => {
  const { url, seen } = await serve(t, (_, response) => void response);
  await assert.rejects(new Client({ url, timeout: 50 }).limits(), { code: "unavailable", message: /did not answer in time/ });
  assert.equal(seen.length, 1);
});

test("a callback that throws cancels the job", async (t) => {
  const { farm, seen } = await serve(t, json(202, { ...done, state: "queued" }), (_, response) => response.writeHead(200, stream).end(frames(1, 2)), json(200, { ...done, state: "canceled" }));
  const thrown = new Error("mine");
  const options = { onStdout: () => { throw thrown; } };
  await assert.rejects(farm.run("1", options), (error) => error === thrown);
  assert.deepEqual(seen.map(({ method, url }) => `${method} ${url}`), ["POST /v1/run", "GET /v1/jobs/job_1/events", "DELETE /v1/jobs/job_1"]);
});

test("the formats of a value come together", async (t) => {
  const event = (data: object): string => `id: 1\nevent: display\ndata: ${JSON.stringify(data)}\n\n`;
  const shown = event({ display: 0, mime: "image/png", data: "iVA=", more: true }) + event({ display: 0, mime: "text/plain", data: "<png>", result: true });
  const { farm } = await serve(t, json(202, { ...done, state: "queued" }), (_, response) => response.writeHead(200, stream).end(shown + final), json(200, done));
  const values: unknown[] = [];
  await farm.run("1", { onDisplay: (value) => values.push([value.text, value.bytes("image/png"), value.result]) });
  assert.deepEqual(values, [["<png>", new Uint8Array([0x89, 0x50]), true]]);
});

test("a key is made where there is no global crypto, as in Node 18", async (t) => {
  const before = Object.getOwnPropertyDescriptor(globalThis, "crypto")!;
  Object.defineProperty(globalThis, "crypto", { value: undefined, configurable: true });
  t.after(() => Object.defineProperty(globalThis, "crypto", before));
  const { farm, seen } = await serve(t, json(200, done));
  await farm.submit("1");
  await farm.submit("1");
  const keys = seen.map(({ headers }) => String(headers["idempotency-key"]));
  assert.ok(keys.every((key) => /^[0-9a-f]{32}$/.test(key)));
  assert.equal(new Set(keys).size, 2);
});
