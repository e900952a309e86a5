// One sandbox: what was done in it, its files, programs, terminal and ports.
import { html, useState } from "../lib.js";
import { t } from "../i18n.js";
import { call, post } from "../api.js";
import { usePoll, useNow } from "../data.js";
import { ago, bytes, lines, shortId, sizes, span, until, when, wrongOf } from "../format.js";
import { Badge, Dialog, ErrorBox, Field, Grid, Icon, Id, Loading, Nowhere, Tabs, useAction, useTitle } from "../parts/basic.js";
import { Notebook } from "./notebook.js";
import { Files } from "./files.js";
import { Packages } from "./packages.js";
import { Use } from "../parts/use.js";
import { isOpen } from "./sandboxes.js";

const AGENT = "/sandfarm/agent "; // how the commands of processes begin that are the farm's own, which nobody has a reason to end
const TABS = ["notebook", "files", "terminal", "packages", "processes", "ports", "egress", "details"];
const KEEP = 3600; // seconds that "keep alive" adds

export function SandboxPage({ id, tab, session }) {
  const path = `v1/sandboxes/${encodeURIComponent(id)}`;
  const { data: box, error, reload } = usePoll(path, 3000);
  const now = useNow(1000);
  const action = useAction();
  const [closing, setClosing] = useState(false);
  const [restarting, setRestarting] = useState(false);
  const open = Boolean(box && isOpen(box));
  const mayRun = session.scopes.includes("run") && open;
  const names = TABS.filter((one) => (one === "egress" ? box && box.network === "allowlist" : mayRun || !["terminal", "ports"].includes(one)));
  const current = tab && (names.includes(tab) || !TABS.includes(tab)) ? tab : "notebook"; // a sandbox that closes has no terminal any more
  useTitle((box && box.name) || id, TABS.includes(current) && t(`box.${current}`), t("box.title"));
  if (!box) return error ? html`<div><p class="crumb"><a href="#/sandboxes">← ${t("box.back")}</a></p><${ErrorBox} error=${error} /></div>` : html`<${Loading} />`;
  const do_ = (work) => action.act(async () => { await work(); reload(); });
  return html`<article class="sandbox-page">
    <p class="crumb"><a href="#/sandboxes">← ${t("box.back")}</a></p>
    <header class="bar-head">
      <h1 title=${box.name}>${box.name || t("box.title")}</h1><${Badge} state=${box.state} />
      <span class="soft small">${open ? until(box, now) : box.reason}</span>
      ${mayRun && html`<div class="end actions">
        ${box.state === "hibernated" && html`<button type="button" class="primary" id="resume" disabled=${action.busy} onClick=${() => do_(() => post(`${path}/resume`, {}, { wait: 60 }))}><${Icon} name="play" />${t("box.resume")}</button>`}
        <button type="button" class="quiet" disabled=${action.busy} onClick=${() => do_(() => call("PATCH", path, { body: { ttl_seconds: Math.round((Math.max(Date.parse(box.expires_at), now) - now) / 1000) + KEEP } }))}><${Icon} name="clock" />${t("box.keep")}</button>
        <button type="button" class="quiet" disabled=${action.busy} onClick=${() => do_(() => post(`${path}/interrupt`, {}))}><${Icon} name="stop" />${t("box.interrupt")}</button>
        <button type="button" class="quiet" disabled=${action.busy} onClick=${() => setRestarting(true)}><${Icon} name="again" />${t("box.restart")}</button>
        <button type="button" class="danger" onClick=${() => setClosing(true)}><${Icon} name="x" />${t("box.close")}</button></div>`}
    </header>
    <p class="ids"><${Id} id=${box.id} />${Object.entries(box.labels || {}).map(([key, value]) => html`<span class="label" key=${key}>${key}=${value}</span>`)}</p>
    ${["ready", "busy"].includes(box.state) && html`<${Use} path=${path} resources=${box.resources} />`}
    <${ErrorBox} error=${action.error} />
    <${Tabs} label=${t("box.title")} current=${current} tabs=${names.map((name) => ({ name, href: `#/sandboxes/${id}/${name}`, title: t(`box.${name}`) }))} />
    ${!TABS.includes(current) && html`<${Nowhere} />`}
    ${current === "notebook" && html`<${Notebook} id=${id} open=${open} mayRun=${mayRun} />`}
    ${current === "files" && html`<${Files} id=${id} open=${open} mayRun=${mayRun} />`}
    ${current === "terminal" && html`<iframe class="terminal" src=${`ui/terminal.html#${encodeURIComponent(id)}`} title=${t("box.terminal")}></iframe><p class="soft small">${t("terminal.leave")}</p>`}
    ${current === "packages" && html`<${Packages} path=${path} open=${open} />`}
    ${current === "processes" && html`<${Processes} path=${path} mayRun=${mayRun} open=${open} />`}
    ${current === "ports" && html`<${Ports} path=${path} />`}
    ${current === "egress" && html`${mayRun && html`<${Hosts} key=${box.id} path=${path} box=${box} onChange=${reload} />`}<${Egress} path=${path} />`}
    ${current === "details" && html`<${Facts} box=${box} />`}
    ${closing && html`<${Close} box=${box} path=${path} onClose=${() => setClosing(false)} />`}
    ${restarting && html`<${Restart} path=${path} onClose=${() => { setRestarting(false); reload(); }} />`}
  </article>`;
}

// Close asks once, and shows what is lost.
function Close({ box, path, onClose }) {
  const files = usePoll(`${path}/files`, 0);
  const { busy, error, act } = useAction();
  const items = (files.data && files.data.items) || [];
  return html`<${Dialog} title=${t("close.title")} onClose=${onClose}>
    ${box.name && html`<p><strong>${box.name}</strong></p>`}
    <p>${t("close.what")}</p>
    ${items.length > 0 && html`<p>${t("close.files", { n: items.length })} <span class="soft">${items.slice(0, 6).map((one) => one.path).join(", ")}${items.length > 6 ? " …" : ""}</span></p>`}
    <p class="soft">${t("close.kept")}</p>
    <${ErrorBox} error=${error} />
    <footer><button type="button" onClick=${onClose}>${t("cancel")}</button>
      <button type="button" class="danger" id="close-now" disabled=${busy} onClick=${() => act(async () => { await call("DELETE", path); onClose(); })}>${t("close.do")}</button></footer>
  <//>`;
}

// Restart asks once, as all variables are lost.
function Restart({ path, onClose }) {
  const { busy, error, act } = useAction();
  return html`<${Dialog} title=${t("restart.title")} onClose=${onClose}>
    <p>${t("restart.what")}</p>
    <p class="soft">${t("restart.kept")}</p>
    <${ErrorBox} error=${error} />
    <footer><button type="button" onClick=${onClose}>${t("cancel")}</button>
      <button type="button" class="danger" id="restart-now" disabled=${busy} onClick=${() => act(async () => { await post(`${path}/restart`, {}); onClose(); })}>${t("restart.do")}</button></footer>
  <//>`;
}

function Facts({ box }) {
  const rows = [
    [t("boxes.image"), box.image], [t("boxes.network"), t(`boxes.network.${box.network}`)], [t("facts.runtime"), box.runtime], ...sizes(box.resources, box.gpu),
    [t("facts.env"), (box.env_names || []).join(", ")], [t("facts.secrets"), (box.secrets || []).join(", ")],
    [t("facts.hosts"), (box.allow_hosts || []).join(", ")], [t("facts.created"), when(box.created_at)], [t("facts.used"), when(box.last_used_at)], [t("facts.expires"), when(box.expires_at)],
    [t("facts.idle"), box.idle_seconds ? `${span(box.idle_seconds)}, ${box.on_idle}` : ""], [t("facts.closed"), when(box.closed_at)], [t("facts.reason"), box.reason],
  ].filter((row) => row[1] !== "" && row[1] !== null && row[1] !== undefined);
  return html`<dl class="facts wide">${rows.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

function Processes({ path, mayRun, open }) {
  const { data, error, reload } = usePoll(open ? `${path}/processes?all=true` : "", 2000);
  const action = useAction();
  if (!open) return html`<p class="soft">${t("box.over")}</p>`;
  if (!data) return error ? html`<${ErrorBox} error=${error} />` : html`<${Loading} />`;
  return html`<${ErrorBox} error=${action.error} />
    <${Grid} label=${t("box.processes")} heads=${[["PID"], [t("proc.command"), "cut"], [t("proc.owner")], ["CPU", "number"], [t("boxes.memory"), "number"], [t("proc.started")], [""]]}
      rows=${(data.running || []).map((one) => [one.pid, one.pid, html`<code title=${one.command}>${one.command}</code>`, one.owner.startsWith("job_") ? html`<a href=${`#/jobs/${one.owner}`} title=${one.owner}>${shortId(one.owner)}</a>` : html`<span title=${one.owner}>${shortId(one.owner)}</span>`, span(one.cpu_seconds), bytes(one.memory_bytes), ago(one.started_at),
    mayRun && !one.command.startsWith(AGENT) && html`<button type="button" class="danger small" onClick=${() => action.act(async () => { await call("DELETE", `${path}/processes/${one.pid}`); reload(); })}>${t("proc.end")}</button>`])} />
  ${!(data.running || []).length && html`<p class="soft">${t("proc.none")}</p>`}`;
}

function Ports({ path }) {
  const { data, error } = usePoll(`${path}/ports`, 3000);
  const action = useAction();
  const open = (port) => {
    const tab = window.open("about:blank", "_blank"); // at the click, or the browser takes it for an advertisement
    action.act(async () => {
      try {
        const link = await post(`${path}/port-links`, { port });
        if (tab) { tab.opener = null; tab.location = link.url; } else location.assign(link.url);
      } catch (problem) {
        if (tab) tab.close();
        throw problem;
      }
    });
  };
  if (!data) return error ? html`<${ErrorBox} error=${error} />` : html`<${Loading} />`;
  return html`<${ErrorBox} error=${action.error} />
    ${data.items.length === 0 && html`<div class="empty"><h2>${t("ports.none.title")}</h2><p>${t("ports.none")} <code>python -m http.server 8000</code></p></div>`}
    ${data.items.length > 0 && html`<ul class="plain ports">${data.items.map((one) => html`<li key=${one.port} class="card"><strong>${one.port}</strong> <code class="soft grow">${one.command}</code>
      <button type="button" onClick=${() => open(one.port)}><${Icon} name="open" />${t("ports.open")}</button></li>`)}</ul>
    <p class="soft small">${t("ports.note")}</p>`}`;
}

// Hosts are the rules of the hosts that an open sandbox may reach, which can be changed.
function Hosts({ path, box, onChange }) {
  const now = (box.allow_hosts || []).join("\n");
  const [text, setText] = useState(null); // null: it is not being changed
  const { busy, error, act } = useAction();
  const save = (event) => {
    event.preventDefault();
    act(async () => { await call("PATCH", path, { body: { allow_hosts: lines(text) } }); setText(null); onChange(); });
  };
  if (text === null) return html`<p class="hosts">${t("boxes.hosts")}: <code>${(box.allow_hosts || []).join(", ") || "–"}</code> <button type="button" class="quiet small" id="hosts" onClick=${() => setText(now)}>${t("change")}</button></p>`;
  const wrong = ((error && error.errors) || []).map(wrongOf);
  return html`<form class="hosts" onSubmit=${save}>
    <${Field} label=${t("boxes.hosts")} hint=${t("boxes.hosts.hint")} wrong=${wrong}><textarea rows=${Math.max(3, text.split("\n").length)} spellcheck=${false} autocapitalize="off" value=${text} onInput=${(event) => setText(event.target.value)}></textarea><//>
    ${!wrong.length && html`<${ErrorBox} error=${error} />`}
    <p><button type="submit" class="primary" disabled=${busy}>${t("save")}</button> <button type="button" onClick=${() => setText(null)}>${t("cancel")}</button></p>
  </form>`;
}

function Egress({ path }) {
  const { data, error } = usePoll(`${path}/egress`, 3000);
  if (!data) return error ? html`<${ErrorBox} error=${error} />` : html`<${Loading} />`;
  return html`<${Grid} label=${t("box.egress")} heads=${[[t("jobs.when")], [t("egress.host"), "wrap"], [t("egress.verdict"), "wrap"], [t("egress.sent"), "number"], [t("egress.received"), "number"]]}
    rows=${data.items.map((one) => [one.id, when(one.at), html`<code>${one.method} ${one.host}:${one.port}</code>`, html`<span class=${`badge ${one.verdict === "allowed" ? "good" : "bad"}`}>${one.verdict}</span> <span class="soft small">${one.reason}</span>`, bytes(one.sent), bytes(one.received)])} />
  ${data.items.length === 0 && html`<p class="soft">${t("egress.none")}</p>`}`;
}
