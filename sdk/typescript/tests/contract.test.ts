// The package has every route of the farm's OpenAPI document: one that is new there fails here until it is added.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";
import { Client, VERSION } from "sandfarm";

// Routes that the package does not call, and why.
const leftOut: Record<string, string> = {
  "GET /v1/artifacts/{id}": "/meta has the same link, and browsers hide where a redirect leads",
  "GET /v1/sandboxes/{id}/processes/{process}/attach": "WebSockets of browsers cannot send the key; events and stdin do the same",
  "GET /v1/sandboxes/{id}/tcp/{port}": "as attach",
};

interface Document {
  paths: Record<string, Record<string, unknown>>;
}

async function document(): Promise<Document> {
  const key = process.env.SANDFARM_API_KEY;
  const answer = await fetch(`${process.env.SANDFARM_URL}/openapi.json`, { headers: key ? { Authorization: `Bearer ${key}` } : {} });
  return (await answer.json()) as Document;
}

/** Every method of the package, called with a farm that answers as little as it can. */
async function called(): Promise<Set<string>> {
  const seen = new Set<string>();
  const final = { id: "{process}", sandbox_id: "sbx_1", state: "completed", kind: "run", items: [], result: { packages: [], results: [], entries: [{ path: "p" }] }, path: "p", next_cursor: null, url: "http://farm/x", written: 1, jobs: [] };
  const fake = async (url: string | URL | Request, init?: RequestInit): Promise<Response> => {
    const { pathname } = new URL(String(url));
    seen.add(`${init?.method ?? "GET"} ${decodeURIComponent(pathname).replace("/ports/1/", "/ports/{port}/")}`);
    if (/\/(events|watch)$/.test(pathname) && pathname !== "/v1/events") {
      const [name, data] = pathname.includes("/jobs/") ? ["state", { state: "completed" }] : ["exit", { exit_code: 0 }];
      return new Response(`id: 1\nevent: ${name}\ndata: ${JSON.stringify(data)}\n\n`);
    }
    return new Response(init?.method === "HEAD" ? null : JSON.stringify(final));
  };
  const farm = new Client({ url: "http://farm", apiKey: "", fetch: fake });
  const box = farm.sandbox("{id}");
  const { jobs, artifacts, admin } = farm;
  const { files, fs, packages, processes } = box;
  await farm.create();
  const process = await processes.start("c");
  await Promise.all([
    farm.run("c"), farm.sandboxes().toArray(), farm.images(), farm.limits(), farm.usage(), farm.queues(), farm.workers(), farm.health(), farm.ready(),
    jobs.get("{id}"), jobs.list().toArray(), jobs.request("{id}"), jobs.cancel("{id}"), jobs.batch([]), jobs.events("{id}").next(),
    artifacts.get("{id}"), artifacts.list().toArray(), artifacts.remove("{id}"),
    admin.keys().toArray(), admin.createKey({ tenant: "t" }), admin.revokeKey("{id}"), admin.audit().toArray(), admin.tenants().toArray(),
    admin.tenant("{name}"), admin.setTenant("{name}", {}), admin.changeTenant("{name}", { set: {} }), admin.usage("{name}"),
    admin.activity(), admin.fleetEvents(), admin.scale(),
    admin.drainNode("{id}"), admin.nodeDrain("{id}"), admin.endNodeDrain("{id}"),
    box.run("c"), box.bash("c"), box.info(), box.update({}), box.interrupt(), box.restart(), box.hibernate(), box.resume(), box.egress().toArray(),
    box.ports(), box.port(1).link(), box.port(1).fetch("{path}"), box.close(),
    files.list().toArray(), files.stat("{path}"), files.readText("{path}"), files.write("{path}", ""), files.writeTar("", ""), files.move("a", "b"), files.remove("{path}"),
    fs.list().toArray(), fs.exists("/{path}"), fs.readText("/{path}"), fs.write("/{path}", ""), fs.writeTar("/", ""), fs.change("/{path}", {}), fs.copy("a", "b"),
    fs.move("a", "b"), fs.link("a", "b"), fs.remove("/{path}"), fs.watch().next(),
    packages.install("p"), packages.list(), packages.status("{name}"),
    processes.list(), process.wait(), process.write(""), process.signal("SIGINT"), process.resize({ cols: 1, rows: 1 }), process.end(),
  ]);
  return seen;
}

test("every route is called by a method", async () => {
  const { paths } = await document();
  const routes = Object.entries(paths).flatMap(([path, item]) => Object.keys(item).map((method) => `${method.toUpperCase()} ${path}`));
  const ours = routes.filter((route) => / \/(v1\/|healthz$|readyz$)/.test(route) && !(route in leftOut));
  assert.deepEqual([...(await called())].sort(), ours.sort());
});

test("the version is that of the package", () => {
  const file = createRequire(import.meta.url).resolve("sandfarm/package.json");
  assert.equal((JSON.parse(readFileSync(file, "utf8")) as { version: string }).version, VERSION);
});
