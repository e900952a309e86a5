// The calls that VS Code's Jupyter extension makes of a server, by the library that it is built on (@jupyterlab/services) and its WebSocket (ws): the
// extension itself needs VS Code. The farm is named by JUPYTER_URL and JUPYTER_TOKEN.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, test } from "node:test";

import services from "@jupyterlab/services";
import WebSocket from "ws";

const { KernelManager, KernelSpecManager, ServerConnection, SessionManager } = services;
const url = process.env.JUPYTER_URL;
const token = process.env.JUPYTER_TOKEN;

// As in the extension: the token is a header of each request and WebSocket, and a part of the WebSocket's address.
class Socket extends WebSocket {
  constructor(address, protocols) {
    super(address, protocols, { headers: { Authorization: `token ${token}` } });
  }
}
const serverSettings = ServerConnection.makeSettings({
  baseUrl: url, wsUrl: url.replace("http", "ws"), appUrl: "", token, appendToken: true, WebSocket: Socket, init: { cache: "no-store", credentials: "same-origin" },
});

const kernels = new KernelManager({ serverSettings });
const specs = new KernelSpecManager({ serverSettings });
const sessions = new SessionManager({ serverSettings, kernelManager: kernels });
const path = `report-jvsc-${randomUUID()}.ipynb`;
let session;
let kernel;

// reached waits until a condition holds, which each signal may have changed.
function reached(signal, holds) {
  return new Promise((resolve) => {
    const check = () => {
      if (holds()) {
        signal.disconnect(check);
        resolve();
      }
    };
    signal.connect(check);
    check();
  });
}

// run runs a cell as the extension does, and returns its reply and what it said.
async function run(code, more = {}, on = kernel) {
  const said = [];
  const future = on.requestExecute({ code, silent: false, stop_on_error: false, allow_stdin: true, store_history: true, ...more }, false, { cellId: randomUUID() });
  future.onIOPub = (message) => {
    said.push(message);
    more.said?.(message);
  };
  future.onStdin = (message) => more.asked?.(message);
  const { content: reply } = await future.done;
  future.dispose();
  return { reply, said, types: said.map((m) => m.header.msg_type).filter((type) => type !== "status" && type !== "execute_input").join(" ") };
}

const textOf = (said) => said.filter((m) => m.header.msg_type === "stream").map((m) => m.content.text).join("");

before(async () => {
  await Promise.all([kernels.ready, specs.ready, sessions.ready]);
  session = await sessions.startNew({ path, name: "report.ipynb", type: "notebook", kernel: { name: specs.specs.default } });
  kernel = session.kernel;
  await reached(kernel.statusChanged, () => kernel.status === "idle");
});

after(async () => {
  for (const manager of [sessions, specs, kernels]) manager.dispose();
});

test("the server has a kernelspec, and the kernel says what it is", async () => {
  assert.ok(specs.specs.kernelspecs.python3.argv);
  const info = await kernel.info;
  assert.equal(info.language_info.name, "python");
  assert.equal(kernel.connectionStatus, "connected");
  assert.equal((await kernel.spec).language, "python");
});

test("what the extension runs by itself is not counted", async () => {
  for (const code of ["import ipywidgets as _VSCODE_w", "%config InlineBackend.figure_formats = {'png'}", `__vsc_ipynb_file__ = "/home/me/report.ipynb"`]) {
    await run(code, { silent: true, store_history: false, allow_stdin: false });
  }
  const { reply } = await run("1");
  assert.equal(reply.execution_count, 1);
});

test("a cell shows its output in order", async () => {
  const got = await run("from IPython.display import HTML, display\nprint('a')\ndisplay(HTML('<b>b</b>'))\nprint('c')\n6 * 7");
  assert.equal(got.types, "stream display_data stream execute_result");
  assert.equal(got.said.at(-2).content.data["text/plain"], "42");
  assert.equal(got.reply.status, "ok");
  const failed = await run("1 / 0");
  assert.equal(failed.reply.ename, "ZeroDivisionError");
  assert.equal(failed.types, "error");
});

test("cells that wait behind a failed one are aborted where the client asks for it", async () => {
  const first = run("import time\ntime.sleep(2)\n1 / 0", { stop_on_error: true }); // so that the second waits, on a busy machine, too
  const second = run("print('never')", { stop_on_error: true });
  assert.equal((await first).reply.status, "error");
  assert.equal((await second).reply.status, "aborted");
});

test("completion, help, history, and whether code is complete", async () => {
  await run("greeting = 'hello'");
  const complete = await kernel.requestComplete({ code: "greet", cursor_pos: 5 });
  assert.ok(complete.content.matches.includes("greeting"));
  const inspect = await kernel.requestInspect({ code: "greeting", cursor_pos: 3, detail_level: 0 });
  assert.match(inspect.content.data["text/plain"], /hello/);
  const history = await kernel.requestHistory({ hist_access_type: "tail", n: 1, output: false, raw: true });
  assert.match(JSON.stringify(history.content), /hello/);
  assert.equal((await kernel.requestIsComplete({ code: "if x:" })).content.status, "incomplete");
});

test("input is asked of the client", async () => {
  const got = await run("print('Hello', input('name? '))", {
    asked: (m) => {
      assert.equal(m.content.prompt, "name? ");
      kernel.sendInputReply({ status: "ok", value: "Ada" }, m.header);
    },
  });
  assert.match(textOf(got.said), /Hello Ada/);
});

test("interrupt", async () => {
  const got = await run("import time\nprint('begun', flush=True)\ntime.sleep(600)", { said: (m) => m.header.msg_type === "stream" && kernel.interrupt() });
  assert.equal(got.reply.ename, "KeyboardInterrupt");
});

test("messages of widgets go both ways, with their bytes", async () => {
  const opened = new Promise((resolve) => kernel.registerCommTarget("jupyter.widget", (comm, message) => resolve({ comm, message })));
  await run("from comm import create_comm\nc = create_comm(target_name='jupyter.widget', data={'state': {}}, buffers=[bytes(range(4))])\nc.on_msg(lambda m: print(m['content']['data'], bytes(m['buffers'][0])))");
  const { comm, message } = await opened;
  assert.deepEqual([...new Uint8Array(message.buffers[0].buffer ?? message.buffers[0], message.buffers[0].byteOffset ?? 0, message.buffers[0].byteLength)], [0, 1, 2, 3]);
  const answer = [];
  const future = comm.send({ value: 6 }, undefined, [new Uint8Array([7, 8]).buffer]);
  future.onIOPub = (m) => answer.push(m);
  await future.done;
  assert.match(textOf(answer), /'value': 6.*b'\\x07\\x08'/);
  const info = await kernel.requestCommInfo({ target_name: "jupyter.widget" });
  assert.ok(info.content.comms[comm.commId]);
});

test("a second window finds the kernel among the sessions, and sees its output", async () => {
  await sessions.refreshRunning();
  const found = [...sessions.running()].find((one) => one.path === path);
  assert.equal(found.kernel.id, kernel.id);
  const other = sessions.connectTo({ model: found });
  await reached(other.kernel.statusChanged, () => other.kernel.status === "idle");
  const seen = new Promise((resolve) => other.kernel.iopubMessage.connect((_, m) => m.header.msg_type === "stream" && /by the first/.test(m.content.text) && resolve()));
  await run("shared = 1\nprint('by the first')");
  await seen;
  assert.equal((await run("shared", {}, other.kernel)).said.at(-2).content.data["text/plain"], "1");
  other.dispose();
});

test("a cell goes on while the connection is gone", async () => {
  let gone;
  const got = await run("import time\nfor i in range(30):\n    print(i, flush=True)\n    time.sleep(0.1)", {
    said: (m) => {
      if (m.header.msg_type === "stream" && !gone) gone = kernel.reconnect();
    },
  });
  await gone;
  const lines = textOf(got.said).split("\n");
  assert.deepEqual([...new Set(lines)], [...Array(30).keys()].map(String).concat(""));
  assert.equal(got.reply.status, "ok");
});

test("restart, of an idle and of a busy kernel, and a crash", async () => {
  const states = [];
  const note = () => states.push(kernel.status);
  kernel.statusChanged.connect(note);
  await run("kept = 1");
  await kernel.restart();
  assert.equal((await run("kept")).reply.ename, "NameError");
  const begun = new Promise((resolve) => {
    const future = kernel.requestExecute({ code: "import time\nprint('begun', flush=True)\ntime.sleep(600)" });
    future.done.catch(() => {}); // the client forgets it
    future.onIOPub = (m) => m.header.msg_type === "stream" && resolve();
  });
  await begun;
  await kernel.restart();
  assert.equal((await run("1")).reply.status, "ok");
  assert.ok(!states.includes("autorestarting"), `${states}`); // the extension shows it as a crash
  const died = reached(kernel.statusChanged, () => states.includes("autorestarting"));
  assert.equal((await run("import os\nos._exit(9)")).reply.ename, "KernelDied");
  await died;
  assert.equal((await run("1")).reply.status, "ok");
});

test("a notebook that is renamed or closed", async () => {
  await session.setPath(`other-${path}`);
  await sessions.refreshRunning();
  assert.ok([...sessions.running()].some((one) => one.path === `other-${path}`));
  await session.shutdown();
  await sessions.refreshRunning();
  assert.equal([...sessions.running()].length, 0);
});
