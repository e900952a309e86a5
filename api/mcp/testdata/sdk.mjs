// create, execute, result, close with the official TypeScript SDK: sdk.mjs URL MODE, where MODE is v1 (the package sdk),
// legacy, auto or modern (the package client). Prints one JSON object with what the client saw.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url, mode] = process.argv.slice(2);
// The packages are in the toolbox, not beside this file.
const packages = createRequire(process.env.TOOLBOX + "/");
const load = async (name) => import(pathToFileURL(packages.resolve(name)));

const check = (ok, what) => { if (!ok) throw new Error("unexpected: " + JSON.stringify(what)); };
const seen = { progress: [] };

async function connect() {
  const me = { name: "sandfarm-test", version: "1" };
  if (mode === "v1") {
    const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport } = await load("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const client = new Client(me);
    const transport = new StreamableHTTPClientTransport(new URL(url));
    await client.connect(transport);
    seen.version = transport.protocolVersion;
    return { client, call: (params, options) => client.callTool(params, undefined, options) };
  }
  const { Client, StreamableHTTPClientTransport } = await load("@modelcontextprotocol/client");
  const pin = mode === "modern" ? { pin: "2026-07-28" } : mode;
  const client = new Client(me, { versionNegotiation: { mode: pin } });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  seen.version = client.getNegotiatedProtocolVersion();
  return { client, call: (params, options) => client.callTool(params, options) };
}

const { client, call: send } = await connect();
const call = async (name, args) => {
  const result = await send({ name, arguments: args }, { onprogress: (p) => seen.progress.push({ value: p.progress, message: p.message }) });
  check(!result.isError, result);
  return result;
};

seen.tools = (await client.listTools()).tools.map((tool) => tool.name).sort();
const box = (await call("create_sandbox", { ttl_seconds: 300 })).structuredContent.sandbox_id;
try {
  await call("execute_python_code", { sandbox_id: box, code: "x = 40" });
  seen.kept = (await call("execute_python_code", { sandbox_id: box, code: "x + 2" })).structuredContent.results;
  const plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()\nopen('note.txt', 'w').write('hi')\nprint('drawn')";
  const drawn = await call("execute_python_code", { sandbox_id: box, code: plot });
  seen.blocks = drawn.content.map((block) => block.type);
  seen.png = drawn.content.filter((block) => block.type === "image")
    .map((block) => Buffer.from(block.data, "base64").subarray(1, 4).toString() === "PNG");
  // A run that outlasts its wait continues as a job; a call that waits for the job reports its output live.
  const slow = "import time\nfor i in range(4):\n    print('tick', i, flush=True); time.sleep(0.5)";
  const handle = (await call("execute_python_code", { sandbox_id: box, code: slow, wait_seconds: 0 })).structuredContent;
  seen.handle = handle.state;
  const ended = (await call("get_job_result", { job_id: handle.job_id, wait_seconds: 45 })).structuredContent;
  seen.result = { state: ended.state, stdout: ended.stdout };
  const bad = await send({ name: "execute_python_code", arguments: { sandbox_id: box } });
  seen.error = { is_error: bad.isError, text: bad.content[0].text };
} finally {
  seen.closed = (await call("close_sandbox", { sandbox_id: box })).structuredContent.state;
}
await client.close();
console.log(JSON.stringify(seen));
