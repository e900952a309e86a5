// What the package does with a real farm: SANDFARM_URL, and SANDFARM_API_KEY where it has keys.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Client, JobError, ResultError, SandfarmError, WaitTimeout, displaysOf, textOf, type Change, type JobEvent, type Sandbox } from "sandfarm";

const farm = new Client();

describe("a sandbox", () => {
  let box: Sandbox;
  before(async () => {
    box = await farm.create({ ttl_seconds: 900, labels: { sdk: "typescript" }, resources: { memory_mb: 512 } });
  });
  after(async () => {
    assert.equal((await box.close()).kind, "close");
  });

  test("keeps variables and shows values", async () => {
    await box.run("x = 20");
    const result = await box.run("print('adding'); x + 22");
    assert.equal(result.stdout, "adding\n");
    assert.equal(textOf(result), "adding\n42");
    assert.deepEqual(displaysOf(result).map(({ text, result: last }) => ({ text, last })), [{ text: "42", last: true }]);
    const other = await box.run("'x' in globals()", { context: "other" });
    assert.equal(textOf(other), "False");
  });

  test("tells what the code does while it runs", async () => {
    const seen: string[] = [];
    const code = "import sys\nfrom IPython.display import display, clear_output\nprint('out')\nprint('err', file=sys.stderr)\nh = display('a', display_id='v')\nh.update('b')\nclear_output(wait=True)\nopen('made.txt', 'w').write('made');";
    const result = await box.run(code, {
      onStdout: (text) => seen.push(`out ${text.trim()}`),
      onStderr: (text) => seen.push(`err ${text.trim()}`),
      onDisplay: (value) => seen.push(`${value.update ? "update" : "display"} ${value.text}`),
      onClear: (wait) => seen.push(`clear ${wait}`),
      onArtifact: (artifact) => seen.push(`artifact ${artifact.path}`),
    });
    assert.deepEqual([...seen].sort(), ["artifact made.txt", "clear true", "display 'a'", "err err", "out out", "update 'b'"]);
    assert.equal(result.exit_code, 0);
    assert.equal(await farm.artifacts.readText(result.artifacts[0]!), "made");
  });

  test("has events that begin behind any of them", async () => {
    const job = await box.submit("for n in range(3): print(n, flush=True)");
    const all: JobEvent[] = [];
    for await (const event of farm.jobs.events(job.id)) all.push(event);
    assert.equal(all.map((event) => (event.name === "stdout" ? event.data.text : "")).join(""), "0\n1\n2\n");
    assert.deepEqual(all.at(-1)?.data, { state: "completed" });
    const rest: JobEvent[] = [];
    for await (const event of farm.jobs.events(job.id, { after: all[0]!.id })) rest.push(event);
    assert.deepEqual(rest, all.slice(1));
  });

  test("reports code that raises as a result, and with check as an error", async () => {
    const result = await box.run("1 / 0");
    assert.equal(result.error?.name, "ZeroDivisionError");
    assert.match(textOf(result), /ZeroDivisionError/);
    assert.match(textOf({ ...result, notes: ["One.", "Two."] }), /ZeroDivisionError: division by zero\nnote: One\.\nnote: Two\.$/);
    assert.deepEqual([result.ok, (await box.run("1")).ok], [false, true]);
    await assert.rejects(box.run("1 / 0", { check: true }), (error) => error instanceof ResultError && error.message === "ZeroDivisionError: division by zero");
    await assert.rejects(box.bash(["true", "echo why >&2; exit 3"], { check: true }), (error) => error instanceof ResultError && /exit code 3: why$/.test(error.message));
  });

  test("runs commands", async () => {
    const result = await box.bash("echo one; echo two >&2", { env: { A: "b" } });
    assert.deepEqual(result.results.map(({ stdout, stderr }) => ({ stdout, stderr })), [{ stdout: "one\n", stderr: "two\n" }]);
    assert.deepEqual([result.stdout, result.stderr, result.exit_code, result.ok], ["one\n", "two\n", 0, true]);
    const several = await box.bash(["echo one", "echo two >&2; echo three; exit 3", "echo never"]);
    assert.deepEqual([several.stdout, several.stderr, several.exit_code, several.ok], ["one\nthree\n", "two\n", 3, false]);
  });

  test("ends a job at its timeout, with the output until then", async () => {
    await assert.rejects(box.run("print('so far', flush=True)\nwhile True: pass", { timeout_seconds: 1, context: "spin" }), (error) => {
      assert.ok(error instanceof JobError);
      assert.equal(error.job.state, "timed_out");
      assert.match(error.message, /stopped after its timeout of 1 second;/);
      assert.equal((error.job.result as { stdout: string }).stdout, "so far\n");
      return true;
    });
  });

  test("reads and writes the workspace", async () => {
    const big = new Uint8Array(3 << 20).map((_, n) => n % 251);
    assert.equal((await box.files.write("in/big.bin", big)).size, big.length);
    assert.deepEqual(await box.files.read("in/big.bin"), big);
    assert.deepEqual(await box.files.read("in/big.bin", { offset: 1000, length: 5 }), big.slice(1000, 1005));
    assert.equal((await box.files.read("in/big.bin", { offset: big.length + 1 })).length, 0);
    const parts = async function* (): AsyncGenerator<Uint8Array> {
      for (const part of ["a", "ü", "c"]) yield new TextEncoder().encode(part);
    };
    await box.files.write("/workspace/in/streamed.txt", parts());
    assert.equal(await box.files.readText("in/streamed.txt"), "aüc");
    assert.deepEqual((await box.files.list("in").toArray()).map((entry) => entry.path).sort(), ["in/big.bin", "in/streamed.txt"]);
    await box.files.move("in/streamed.txt", "in/moved 100%.txt");
    assert.equal((await box.files.stat("in/moved 100%.txt")).size, 4);
    const link = await box.files.url("in/moved 100%.txt");
    assert.equal(await (await fetch(link)).text(), "aüc");
    assert.equal((await box.files.mkdir("empty")).type, "dir");
    await box.files.remove("in");
    assert.equal(await box.files.exists("in/big.bin"), false);
    await assert.rejects(box.files.read("../etc/passwd"), { code: "invalid" });
  });

  test("reads and writes any file at once", async () => {
    const made = await box.fs.write("/tmp/app/config.json", "{}", { mode: 0o600, isNew: true });
    assert.equal(made.mode, "0600");
    await assert.rejects(box.fs.write(made.path, "x", { isNew: true }), { status: 412 });
    const changed = await box.fs.write(made.path, '{"a": 1}', { ifMatch: made.etag });
    assert.equal(await box.fs.readText(changed.path), '{"a": 1}');
    assert.deepEqual(await box.fs.read(changed.path, { offset: 1, length: 3 }), new TextEncoder().encode('"a"'));
    await box.fs.write(changed.path, "!", { append: true });
    await box.fs.write(changed.path, "[", { offset: 0 });
    assert.equal(await box.fs.readText(changed.path), '["a": 1}!');
    await box.fs.copy("/tmp/app", "/tmp/copy");
    await box.fs.move("/tmp/copy/config.json", "/tmp/copy/moved.json");
    await box.fs.link("/tmp/copy/link", "moved.json");
    await box.fs.change("/tmp/copy/moved.json", { mode: "0640" });
    const listed = await box.fs.list("/tmp/copy").toArray();
    assert.deepEqual(listed.map(({ path, type, mode }) => (type === "symlink" ? path : `${path} ${mode}`)).sort(), ["/tmp/copy/link", "/tmp/copy/moved.json 0640"]);
    const tar = await box.fs.tar("/tmp/copy");
    await box.fs.mkdir("/tmp/unpacked");
    await box.fs.writeTar("/tmp/unpacked", tar);
    assert.equal((await box.fs.list("/tmp/unpacked", { depth: 3 }).toArray()).filter((entry) => entry.path.endsWith("moved.json")).length, 1);
    const zip = new Uint8Array(await new Response(await box.fs.zip("/tmp/copy")).arrayBuffer());
    assert.deepEqual([...zip.subarray(0, 2)], [...Buffer.from("PK")]);
    await box.fs.remove("/tmp/copy");
    assert.equal(await box.fs.exists("/tmp/copy"), false);
    assert.equal((await box.fs.stat("/etc")).type, "dir");
  });

  test("tells what happens to files", async () => {
    await box.fs.mkdir("/tmp/seen");
    const seen: Change[] = [];
    for await (const change of box.fs.watch("/tmp/seen", { recursive: true, ignore: ["*.tmp"] })) {
      seen.push(change);
      if (change.name === "ready") await box.fs.write("/tmp/seen/new.txt", "x");
      else if (change.name !== "dropped" && change.data.path === "/tmp/seen/new.txt") break;
    }
    assert.equal(seen[0]?.name, "ready");
  });

  test("runs processes and terminals", async () => {
    const echo = await box.processes.start("while read name; do echo hello $name; done", { stdin: true, name: "echo" });
    assert.equal(await echo.write("wörld\n", { close: true }), 7);
    let text = "";
    for await (const output of echo.output()) text += output.text;
    assert.equal(text, "hello wörld\n");
    assert.equal(echo.info.exit_code, 0);
    const shell = await box.processes.terminal({ cols: 100, rows: 30 });
    await shell.resize({ cols: 120, rows: 40 });
    await shell.write("stty size; exit 3\n");
    let screen = "";
    for await (const output of shell.output()) screen += output.text;
    assert.match(screen, /40 120/);
    assert.equal(shell.info.exit_code, 3);
    const sleeper = await box.processes.start(["sleep", "600"]);
    assert.ok((await box.processes.running()).some((one) => one.owner === sleeper.id));
    await sleeper.signal("SIGINT");
    assert.equal((await sleeper.wait()).exit_code, 130);
    const other = await box.processes.start("sleep 600");
    assert.equal((await other.end()).stopped, true);
    assert.equal((await box.processes.get(sleeper.id)).info.state, "exited");
    assert.ok((await box.processes.list()).some(({ id }) => id === sleeper.id));
  });

  test("passes requests on to its ports", async () => {
    const code = "import http.server as h, threading\nclass H(h.BaseHTTPRequestHandler):\n  def do_POST(self):\n    b = self.rfile.read(int(self.headers['Content-Length']))\n    self.send_response(201); self.end_headers(); self.wfile.write(self.path.encode() + b' ' + b)\n  do_GET = lambda self: (self.send_response(200), self.end_headers(), self.wfile.write(b'got'))\ns = h.ThreadingHTTPServer(('127.0.0.1', 8123), H)\nthreading.Thread(target=s.serve_forever, daemon=True).start()";
    await box.run(code, { check: true, context: "server" });
    const answer = await box.port(8123).fetch("/a/b?c=d", { method: "POST", body: "posted" });
    assert.equal(answer.status, 201);
    assert.equal(await answer.text(), "/a/b?c=d posted");
    assert.ok((await box.ports()).some(({ port }) => port === 8123));
    const link = await box.port(8123).link({ expires_seconds: 60 });
    assert.equal(link.port, 8123);
    const path = await box.port(8123).link({ path_style: true });
    assert.equal(await (await fetch(path.url)).text(), "got");
    assert.throws(() => box.port(8123).fetch("../../files"), TypeError);
  });

  test("lists packages, and reports each one that cannot be installed", async () => {
    await assert.rejects(box.packages.install("no-such-package-anywhere-at-all", { timeout_seconds: 120 }), (error) => error instanceof ResultError && /no-such-package/.test(error.message));
    const { ok, versions } = await box.packages.install(["no-such-package-anywhere-at-all", "six"], { timeout_seconds: 120, check: false });
    assert.deepEqual([ok, Object.keys(versions)], [false, ["six"]]);
    assert.match(versions.six ?? "", /^1\./);
    assert.ok(Array.isArray(await box.packages.list()));
    const status = await box.packages.status("no-such-package-anywhere-at-all");
    assert.ok(["failed", "not_found"].includes(status.status), status.status);
  });

  test("is described, changed and found by its labels", async () => {
    assert.equal((await box.update({ name: "renamed", labels: { sdk: "typescript", of: box.id } })).name, "renamed");
    const found = await farm.sandboxes({ label: ["sdk=typescript", `of=${box.id}`], limit: 1 }).toArray();
    assert.deepEqual(found.map((one) => one.id), [box.id]);
    assert.equal((await box.info()).resources.memory_mb, 512);
    assert.deepEqual(await box.egress().toArray(), []);
  });

  test("cancels the job of a call that is aborted", async () => {
    const stop = new AbortController();
    const reason = new Error("enough");
    const key = `abort-${box.id}`;
    const options = { signal: stop.signal, idempotencyKey: key, context: "abort", onStdout: () => stop.abort(reason) };
    await assert.rejects(box.run("print('begun', flush=True)\nwhile True: pass", options), (error) => error === reason);
    const again = await box.submit("print('begun', flush=True)\nwhile True: pass", { idempotencyKey: key, context: "abort" });
    assert.equal((await farm.jobs.wait(again.id)).state, "canceled");
  });

  test("goes on after the time to wait is over", async () => {
    const error: unknown = await box.run("import time; time.sleep(600)", { waitTimeout: 300 }).catch((thrown: unknown) => thrown);
    assert.ok(error instanceof WaitTimeout);
    const { job } = error;
    await farm.jobs.cancel(job.id);
    assert.equal((await farm.jobs.wait(job.id)).state, "canceled");
  });
});

test("a run has its own files, and a batch starts many", async () => {
  const run = farm.run("print(open('in.txt').read(), len(open('b.bin', 'rb').read()))", { files: { "in.txt": "from a file", "b.bin": new Uint8Array([0, 255]) }, check: true });
  assert.equal((await run).stdout, "from a file 2\n");
  const job = await farm.submit("print(1)");
  assert.equal((await farm.jobs.wait(job.id)).state, "completed");
  assert.equal((await farm.jobs.request(job.id)).code, "print(1)");
  const outcomes = await farm.jobs.batch([{ kind: "run", code: "6 * 7" }, { kind: "execute", sandbox_id: "sbx_nowhere", code: "1" }], { wait: 60 });
  assert.deepEqual(outcomes.map(({ job: started, error }) => [Boolean(started), error?.code]), [[true, undefined], [false, "not_found"]]);
  assert.equal((await farm.jobs.list({ limit: 1 }).toArray(2)).length, 2); // two pages
});

test("errors have a code, the fields that are wrong and the id of the request", async () => {
  await assert.rejects(farm.sandbox("sbx_nowhere").info(), { code: "not_found", status: 404 });
  await assert.rejects(farm.create({ ttl_seconds: -1, nmae: "x" } as object), (error) => {
    assert.ok(error instanceof SandfarmError);
    assert.deepEqual(error.errors.map(({ pointer }) => pointer), ["/nmae", "/ttl_seconds"]);
    assert.equal(error.code, "invalid");
    assert.ok(error.requestId);
    return true;
  });
  if (process.env.SANDFARM_API_KEY) await assert.rejects(new Client({ apiKey: "wrong" }).limits(), { code: "unauthorized", status: 401 });
});

test("the farm describes itself", async () => {
  assert.ok((await farm.images()).some(({ name }) => name === "python"));
  assert.equal((await farm.limits()).wait_max_seconds, 60);
  assert.ok((await farm.health()).version);
  assert.equal((await farm.ready()).status, "ready");
  assert.ok(Array.isArray(await farm.queues()));
  assert.ok((await farm.workers()).length > 0);
  assert.ok((await farm.usage({ days: 1 })).quotas.length > 0);
});
