// The farm, for its operator: is it well, who works, what waits, who uses what.
import { html, useState } from "../lib.js";
import { t, locale } from "../i18n.js";
import { call, logOut, post, target } from "../api.js";
import { usePoll } from "../data.js";
import { ago, count, milliseconds, span, when, wrongOf } from "../format.js";
import { CLI_PATH, firstKey } from "../snippets.js";
import { Chart } from "../parts/chart.js";
import { Copy, Dialog, Empty, ErrorBox, Field, Grid, Icon, Loading, Nowhere, Tabs, useAction, useTitle } from "../parts/basic.js";
import { Events, Node } from "./fleet.js";
import { Amount } from "./usage.js";

const TENANTS = target("v1/tenants", { limit: 200 });
const TABS = ["overview", "tenants", "keys", "audit"];

export function Farm({ id, session }) {
  const tab = id || "overview";
  useTitle(TABS.includes(tab) && t(`farm.${tab}`), t("nav.farm"));
  if (!session.scopes.includes("admin")) return html`<${Empty} icon="farm" title=${t("farm.refused.title")}>${t("farm.refused")} <a href="#/usage">${t("nav.usage")}</a><//>`;
  return html`<div class="farm-page">
    <header class="bar-head"><h1>${t("nav.farm")}</h1></header>
    <${Tabs} label=${t("nav.farm")} current=${tab} tabs=${TABS.map((name) => ({ name, href: `#/farm/${name}`, title: t(`farm.${name}`) }))} />
    ${!TABS.includes(tab) && html`<${Nowhere} />`}
    ${tab === "overview" && html`<${Overview} />`}
    ${tab === "tenants" && html`<${Tenants} />`}
    ${tab === "keys" && html`<${Keys} session=${session} />`}
    ${tab === "audit" && html`<${Audit} />`}
  </div>`;
}

function Overview() {
  const ready = usePoll("readyz", 30000);
  const workers = usePoll("v1/workers", 5000);
  const queues = usePoll("v1/queues", 15000); // the dearest: five commands of Redis for each queue
  const tenants = usePoll(TENANTS, 60000); // twelve commands for each tenant
  if (!workers.data || !queues.data) return workers.error || queues.error ? html`<${ErrorBox} error=${workers.error || queues.error} />` : html`<${Loading} />`;
  const nodes = new Map();
  for (const one of workers.data.items) nodes.set(one.node, [...(nodes.get(one.node) || []), one]);
  const jobs = queues.data.items.filter((one) => one.name !== "callbacks"); // which deliver jobs that have ended
  const waiting = jobs.reduce((sum, one) => sum + one.depth, 0);
  const running = jobs.reduce((sum, one) => sum + one.running, 0);
  const open = tenants.data && tenants.data.items.reduce((sum, one) => sum + (one.quotas.find((quota) => quota.name === "max_sandboxes")?.used ?? 0), 0);
  const parts = Object.entries((ready.error || ready.data || {}).parts || {});
  const troubles = workers.data.items.filter((one) => one.problem);
  return html`<div class="farm">
    <section class="tiles" aria-label=${t("farm.overview")}>
      <div class="card tile"><span class="soft">${t("farm.health")}</span><strong class=${ready.error ? "no" : "yes"}>${ready.error ? t("farm.ill") : ready.data ? t("farm.well") : "…"}</strong>
        <span class="small">${parts.map(([name, part]) => html`<span key=${name} class=${`badge ${part.ok ? "good" : "bad"}`} title=${part.detail || ""}>${name}</span> `)}</span></div>
      <div class="card tile"><span class="soft">${t("farm.workers")}</span><strong>${count(workers.data.items.length)}</strong><span class="soft small">${t("farm.nodes", { n: nodes.size })}</span></div>
      <div class="card tile"><span class="soft">${t("nav.sandboxes")}</span><strong>${tenants.data ? `${count(open)}${tenants.data.next_cursor ? "+" : ""}` : "…"}</strong><span class="soft small">${t("farm.openNow")}</span></div>
      <div class="card tile"><span class="soft">${t("farm.waiting")}</span><strong>${count(waiting)}</strong><span class="soft small">${t("farm.running", { n: count(running) })}</span></div>
    </section>
    <${Activity} />
    ${troubles.map((one) => html`<div class="error" role="alert" key=${one.id}><strong>${one.host} <code>${one.id}</code></strong><p>${one.problem}</p></div>`)}
    ${nodes.size === 0 && html`<div class="error" role="alert"><strong>${t("farm.noWorker.title")}</strong><p>${t("farm.noWorker")} <code>sandfarm worker</code></p></div>`}
    <div class="fleet"><section><div class="nodes">${[...nodes].map(([node, of]) => html`<${Node} key=${node} node=${node} workers=${of} reload=${workers.reload} />`)}</div>
      ${nodes.size > 0 && html`<p class="soft small">${t("farm.promised")}</p>`}</section>
      <${Events} /></div>
    <section><h2>${t("farm.queues")}</h2>
      <${Grid} label=${t("farm.queues")} named heads=${[[t("farm.queue")], ...["farm.depth", "farm.oldest", "farm.rate", "farm.atwork"].map((key) => [t(key), "number"]), ["GPU", "number"]]}
        rows=${queues.data.items.map((one) => [one.name, html`<code>${one.name}</code>`, count(one.depth), one.oldest_seconds ? span(one.oldest_seconds) : "–", one.ended_per_minute ? one.ended_per_minute.toFixed(1) : "–", count(one.running), one.gpus ? `${one.gpus_leased} / ${one.gpus}` : "–"])} /></section>
  </div>`;
}

const clock = (time) => new Date(time).toLocaleTimeString(locale(), { hour: "2-digit", minute: "2-digit" });

// Activity shows the last hour: how many jobs ended in each minute, and how long they waited and ran.
function Activity() {
  const { data } = usePoll("v1/activity", 20000);
  if (!data) return null;
  const minutes = data.items;
  const ended = minutes.reduce((sum, one) => sum + one.ended, 0);
  const of = (name) => minutes.map((one) => one[name]);
  const ends = { from: clock(minutes[0].at), to: t("now") };
  return html`<section class="charts" aria-label=${t("farm.hour")}>
    <${Chart} title=${t("farm.perMinute", { n: count(ended) })} ...${ends} format=${(n) => count(Math.round(n))} series=${[{ name: "run", title: t("farm.ended"), values: of("ended"), bars: true }, { name: "bad", title: t("farm.failed"), values: of("failed"), bars: true }]} />
    <${Chart} title=${t("farm.times")} ...${ends} format=${milliseconds} series=${[{ name: "run", title: t("timeline.run"), values: of("run_ms") }, { name: "queue", title: t("timeline.queue"), values: of("wait_ms") }, { name: "bad", title: t("farm.longest"), values: of("max_wait_ms") }]} />
  </section>`;
}

function Tenants() {
  const { data, error } = usePoll(TENANTS, 15000);
  if (!data) return error ? html`<${ErrorBox} error=${error} />` : html`<${Loading} />`;
  if (data.items.length === 0) return html`<${Empty} icon="farm" title=${t("tenants.none.title")}>${t("tenants.none")} <code>sandfarm tenant set NAME --max-sandboxes 20</code><//>`;
  const names = [...new Set(data.items.flatMap((one) => one.quotas.map((quota) => quota.name)))];
  return html`<${Grid} label=${t("farm.tenants")} named heads=${[[t("farm.tenant")], ...names.map((name) => [t(`quota.${name}`), "number"])]} rows=${data.items.map((one) => [one.name, one.name, ...names.map((name) => {
    const quota = one.quotas.find((found) => found.name === name);
    return quota ? html`<${Amount} quota=${quota} />` : "–";
  })])} />
  <p class="soft small">${t("farm.quotas")} <code>sandfarm tenant set NAME --max-sandboxes 20</code></p>`;
}

function Keys({ session }) {
  const { data, error, reload } = usePoll(target("v1/keys", { limit: 200 }), session.keyless ? 3000 : 30000);
  const action = useAction();
  const [making, setMaking] = useState(false);
  if (!data) return error ? html`<${ErrorBox} error=${error} />` : html`<${Loading} />`;
  const revoke = (key) => confirm(lossOf(key, data.items, session)) && action.act(async () => {
    await call("DELETE", `v1/keys/${key.id}`);
    if (key.id === session.key_id) await logOut(); else reload();
  });
  return html`<div class="bar-head"><span class="grow"></span><button type="button" class="primary" onClick=${() => setMaking(true)}><${Icon} name="plus" />${t("keys.new")}</button></div>
    <${ErrorBox} error=${action.error} />
    ${data.items.length > 0 && html`<${Grid} label=${t("farm.keys")} heads=${[...["keys.name", "keys.id", "farm.tenant", "keys.scopes", "keys.used", "keys.expires"].map((key) => [t(key)]), [""]]}
      rows=${data.items.map((key) => [key.id, key.name || "–", html`<code>${key.id}</code>`, key.tenant, key.scopes.join(", "), key.last_used_at ? ago(key.last_used_at) : "–", key.expires_at ? html`<span title=${when(key.expires_at)}>${Date.parse(key.expires_at) < Date.now() ? t("keys.expired", { when: ago(key.expires_at) }) : when(key.expires_at)}</span>` : t("keys.never"),
    key.origin === "api" ? html`<button type="button" class="danger small" onClick=${() => revoke(key)}>${t("keys.revoke")}</button>` : html`<span class="soft small">${t("keys.settings")}</span>`])} />`}
    ${data.items.length === 0 && html`<${Empty} icon="key" title=${t("keys.none")}>${session.keyless && t("keys.openFarm")}<//>`}
    ${making && html`<${session.keyless ? FirstKey : NewKey} session=${session} onClose=${() => { setMaking(false); reload(); }} />`}`;
}

// lossOf asks whether a key is to be revoked, and says what that means to who asks and to the farm.
function lossOf(key, keys, session) {
  const admins = keys.filter((one) => one.scopes.includes("admin") && (!one.expires_at || Date.parse(one.expires_at) > Date.now()));
  return [t("keys.sure", { name: key.name || key.id }), key.id === session.key_id && t("keys.sure.own"),
    admins.some((one) => one.id === key.id) && admins.length === 1 && t("keys.sure.last", { command: firstKey(session.data) })].filter(Boolean).join("\n\n");
}

// FirstKey says how a farm without keys gets its first one, which the farm refuses to make from afar.
const FirstKey = ({ session, onClose }) => html`<${Dialog} title=${t("keys.new")} onClose=${onClose}>
  <p>${t("keys.first")}</p>
  <pre class="code" tabindex="0"><code>${firstKey(session.data)}</code></pre>
  <p class="soft small">${t("cli.where")} <code>${CLI_PATH}</code></p>
  <p class="soft">${t("keys.first.then")}</p>
  <footer><${Copy} text=${firstKey(session.data)} label=${t("keys.copyCommand")} wide /></footer>
<//>`;

// lifeOf is the life of a key in seconds: of so many days, or to the end of a day here; undefined: for ever.
const lifeOf = ({ life, date }) => (life === "date" ? Math.ceil((Date.parse(`${date}T23:59:59`) - Date.now()) / 1000) : life * 86400 || undefined);

// NewKey makes a key and shows it, which happens once.
function NewKey({ onClose }) {
  const [form, setForm] = useState({ tenant: "", name: "", scopes: ["run", "read"], life: "", date: "" });
  const [made, setMade] = useState(null);
  const { busy, error, act } = useAction();
  const change = (name) => (event) => setForm({ ...form, [name]: event.target.value });
  const problems = (error && error.errors) || [];
  const wrong = (field) => problems.filter((one) => one.pointer === field).map(wrongOf);
  const elsewhere = !problems.length || problems.some((one) => !["/tenant", "/name"].includes(one.pointer));
  const submit = (event) => { event.preventDefault(); act(async () => setMade(await post("v1/keys", { tenant: form.tenant, scopes: form.scopes, name: form.name || undefined, expires_seconds: lifeOf(form) }))); };
  return html`<${Dialog} title=${t("keys.new")} onClose=${onClose}>
    ${made ? html`<p>${t("keys.once")}</p><p class="id"><code>${made.secret}</code></p><footer><${Copy} text=${made.secret} label=${t("keys.copy")} wide /></footer>` : html`<form class="dialog-form" onSubmit=${submit}>
      <${Field} label=${t("farm.tenant")} wrong=${wrong("/tenant")}><input type="text" required autofocus value=${form.tenant} onInput=${change("tenant")} /><//>
      <${Field} label=${t("boxes.name")} wrong=${wrong("/name")}><input type="text" value=${form.name} onInput=${change("name")} /><//>
      <fieldset class="scopes"><legend>${t("keys.scopes")}</legend>${["run", "read", "metrics", "admin"].map((scope) => html`<label key=${scope}><input type="checkbox" checked=${form.scopes.includes(scope)} onChange=${(event) => setForm({ ...form, scopes: event.target.checked ? [...form.scopes, scope] : form.scopes.filter((one) => one !== scope) })} /> ${scope} <small class="soft">${t(`keys.scope.${scope}`)}</small></label>`)}
        ${!form.scopes.length && html`<small class="wrong" role="alert">${t("keys.noScope")}</small>`}</fieldset>
      <${Field} label=${t("keys.expires")}><select value=${form.life} onChange=${change("life")}><option value="">${t("keys.never")}</option>
        ${["30", "90", "365"].map((n) => html`<option key=${n} value=${n}>${t("keys.in", { n })}</option>`)}<option value="date">${t("keys.date")}</option></select><//>
      ${form.life === "date" && html`<${Field} label=${t("keys.last")}><input type="date" required value=${form.date} onInput=${change("date")} /><//>`}
      ${elsewhere && html`<${ErrorBox} error=${error} />`}
      <footer><button type="submit" class="primary" disabled=${busy || !form.scopes.length}>${t("boxes.create")}</button></footer>
    </form>`}
  <//>`;
}

function Audit() {
  const [tenant, setTenant] = useState("");
  const { data, error } = usePoll(target("v1/audit", { limit: 100, tenant }), 4000);
  return html`<div class="bar-head"><input type="search" placeholder=${t("farm.tenant")} aria-label=${t("farm.tenant")} value=${tenant} onInput=${(event) => setTenant(event.target.value.trim())} /></div>
    <${ErrorBox} error=${error} />
    ${data && html`<${Grid} label=${t("farm.audit")} heads=${[[t("jobs.when")], [t("farm.tenant")], [t("audit.key"), "wrap"], [t("audit.route"), "words"], [t("audit.subject"), "wrap"], [t("audit.status"), "number"], [t("audit.from"), "wrap"]]}
      rows=${data.items.map((one) => [one.id, when(one.at), one.tenant || "–", one.key_id ? html`<code>${one.key_id}</code>` : "–", html`<code>${one.route.split(/(?=\/)/).map((part) => html`${part}<wbr />`)}</code>`, html`<code>${one.job_id || one.subject || one.sandbox_id}</code>`, html`<span class=${`badge ${one.status < 400 ? "good" : "bad"}`}>${one.status}</span>`, one.from])} />
      ${data.items.length === 0 && html`<p class="soft">${t("audit.none")}</p>`}`}`;
}
