// Nodes with their workers, what they have and what of it is taken; how they are drained; and what happened to them.
import { html, useState } from "../lib.js";
import { t } from "../i18n.js";
import { call, post } from "../api.js";
import { usePoll } from "../data.js";
import { ago, bytes, when } from "../format.js";
import { Dialog, ErrorBox, Field, Icon, useAction } from "../parts/basic.js";

// Meter shows how much of something is taken, or, of what is best when full, how much is there.
const Meter = ({ label, used, all, text, full }) => html`<div class="meter-row"><span class="soft">${label}</span><meter min="0" max=${all || 1} value=${Math.min(used, all || 1)} low=${(all || 1) * (full ? 0.25 : 0.75)} high=${(all || 1) * (full ? 0.75 : 0.92)} optimum=${full ? all : 0} aria-label=${label}></meter><span>${text}</span></div>`;

// Gpu is a device: its model, and whether a sandbox has it.
const Gpu = ({ gpu }) => html`<li class=${`gpu ${gpu.leased ? "taken" : ""}`} title=${gpu.id}><strong>${gpu.model || "GPU"}</strong>${gpu.memory_mb > 0 && html`<span class="small">${bytes(gpu.memory_mb * 1048576)}</span>`}<span class="small">${t(gpu.leased ? "farm.leased" : "farm.free")}</span></li>`;

// Node is an engine with its workers: what it promised of what it has, its pool, its GPUs.
export function Node({ node, workers, reload }) {
  const [first] = workers;
  const { capacity, promised, drain, machine } = first;
  const gpus = first.gpus || [];
  const [draining, setDraining] = useState(false);
  const { busy, error, act } = useAction();
  const end = () => act(async () => { await call("DELETE", `v1/nodes/${encodeURIComponent(node)}/drain`); reload(); });
  return html`<article class="card node">
    <header><h2>${first.host}</h2><code class="soft small">${node}</code><span class="grow"></span>
      ${drain ? html`<button type="button" class="small" disabled=${busy} onClick=${end}>${t("drain.end")}</button>` : html`<button type="button" class="quiet small drain" onClick=${() => setDraining(true)}>${t("drain.start")}</button>`}</header>
    ${drain && html`<p><span class=${`badge ${drain.state === "draining" ? "wait" : "good"}`}>${t(`drain.${drain.state}`)}</span> <span class="small">${t("drain.left", { n: drain.sandboxes, jobs: drain.jobs })}${drain.ends_by && drain.sandboxes > 0 ? ` ${t("drain.by", { when: ago(drain.ends_by) })}` : ""}</span></p>`}
    <${ErrorBox} error=${error} />
    ${machine && html`<${Meter} label=${t("boxes.memory")} used=${machine.used_mb} all=${machine.memory_mb} text=${t("farm.used", { n: bytes(machine.used_mb * 1048576), all: bytes(machine.memory_mb * 1048576) })} />
      <${Meter} label=${t("facts.cpus")} used=${machine.load} all=${machine.cpus} text=${t("farm.load", { n: machine.load.toFixed(1), all: machine.cpus })} />`}
    ${!drain && capacity.memory_mb > 0 && html`<${Meter} label=${t("farm.promisedMemory")} used=${promised.memory_mb} all=${capacity.memory_mb} text=${`${bytes(promised.memory_mb * 1048576)} / ${bytes(capacity.memory_mb * 1048576)}`} />
      <${Meter} label=${t("farm.promisedCores")} used=${promised.cpus} all=${capacity.cpus} text=${`${promised.cpus} / ${capacity.cpus}`} />`}
    ${workers.map((one) => html`<${Meter} key=${one.id} label=${t("farm.jobs")} used=${one.running} all=${one.slots} text=${`${one.running} / ${one.slots}`} />`)}
    ${(first.pool || []).map((one) => html`<${Meter} key=${one.image + one.runtime} label=${t("farm.pool", { image: one.image })} full used=${one.ready} all=${one.target} text=${t("farm.poolReady", { n: one.ready, all: one.target })} />`)}
    ${gpus.length > 0 && html`<h3>${t("farm.gpus", { n: first.gpus_leased, all: gpus.length })}</h3><ul class="gpus">${gpus.map((gpu) => html`<${Gpu} key=${gpu.id} gpu=${gpu} />`)}</ul>`}
    <p class="soft small">${t("farm.sandboxes", { n: Math.max(...workers.map((one) => one.sandboxes)) })} · ${first.images.join(", ")} · ${(first.runtimes || []).join(", ")} · ${first.version}</p>
    <p class="soft small">${workers.map((one) => html`<span key=${one.id}><code>${one.id}</code> ${t("farm.since", { when: ago(one.started_at) })} </span>`)}</p>
    ${draining && html`<${Drain} node=${node} host=${first.host} onClose=${() => { setDraining(false); reload(); }} />`}
  </article>`;
}

// Drain asks what is to become of idle sandboxes, and drains a node.
function Drain({ node, host, onClose }) {
  const [idle, setIdle] = useState("keep");
  const { busy, error, act } = useAction();
  const start = (event) => {
    event.preventDefault();
    act(async () => { await post(`v1/nodes/${encodeURIComponent(node)}/drain`, { idle }); onClose(); });
  };
  return html`<${Dialog} title=${t("drain.title", { host })} onClose=${onClose}>
    <form class="dialog-form" onSubmit=${start}>
      <p>${t("drain.what")}</p>
      <${Field} label=${t("drain.idle")}><select value=${idle} onChange=${(event) => setIdle(event.target.value)}>${["keep", "hibernate", "close"].map((one) => html`<option key=${one} value=${one}>${t(`drain.idle.${one}`)}</option>`)}</select><//>
      <${ErrorBox} error=${error} />
      <footer><button type="button" onClick=${onClose}>${t("cancel")}</button><button type="submit" class="primary" disabled=${busy}>${t("drain.start")}</button></footer>
    </form>
  <//>`;
}

const TONES = { worker_lost: "bad", node_ended: "bad", worker_problem: "wait", drain_started: "wait", worker_started: "good", worker_recovered: "good" };
const SHOWN = 12; // events that are shown at first

// Events are what happened to workers and nodes, the newest first.
export function Events() {
  const { data, error } = usePoll("v1/events", 10000);
  const [all, setAll] = useState(false);
  if (!data) return error && html`<${ErrorBox} error=${error} />`;
  const items = all ? data.items : data.items.slice(0, SHOWN);
  return html`<section class="events"><h2>${t("events.title")}</h2>
    ${items.length === 0 && html`<p class="soft">${t("events.none")}</p>`}
    <ul class="card">${items.map((one) => html`<li key=${one.id}>
      <time class="soft small" datetime=${one.at} title=${when(one.at)}>${ago(one.at)}</time>
      <span class=${`badge ${TONES[one.kind] || "dull"}`}>${t(`events.${one.kind}`)}</span>
      <span class="grow"><strong>${one.host || one.node}</strong> ${one.jobs > 0 ? t("events.jobs", { n: one.jobs }) : ""}${one.sandboxes > 0 ? t("events.sandboxes", { n: one.sandboxes }) : ""}${one.kind === "worker_problem" ? one.detail : ""} <code class="soft small">${one.worker_id}</code></span>
    </li>`)}</ul>
    ${data.items.length > items.length && html`<p><button type="button" class="quiet" onClick=${() => setAll(true)}>${t("events.all", { n: data.items.length })}</button></p>`}
  </section>`;
}
