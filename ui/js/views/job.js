// One job: where its time went, what was asked, what came of it.
import { html, useState } from "../lib.js";
import { t } from "../i18n.js";
import { call, get, post } from "../api.js";
import { bytes, firstLine, forPeople, sizes, span } from "../format.js";
import { usePoll } from "../data.js";
import { useJob, isFinal, shownOf, wholeOf } from "../follow.js";
import { Badge, ErrorBox, Icon, Id, Loading, Trouble, useAction, useTitle } from "../parts/basic.js";
import { Code } from "../parts/editor.js";
import { Artifacts, Outcome, Output, useRemoval } from "../parts/output.js";
import { Timeline, Waits } from "../parts/timeline.js";
import { Progress } from "./playground.js";
import { isOpen } from "./sandboxes.js";

// ROUTES lead the request of a job to the route that took it.
const ROUTES = {
  run: () => "v1/run",
  execute: (job) => `v1/sandboxes/${job.sandbox_id}/execute`,
  command: (job) => `v1/sandboxes/${job.sandbox_id}/commands`,
  install: (job) => `v1/sandboxes/${job.sandbox_id}/packages`,
};

// sameAgain starts a job once more. The values of its variables and its files are not kept, so a request that had some cannot be sent again.
async function sameAgain(job) {
  const request = job.links.request ? await get(job.links.request.replace(/^\//, "")) : job.request;
  const fields = job.kind === "run" ? ["code", "language", "filename", "packages", "auto_install", "network", "allow_hosts", "gpu", "resources", "image", "timeout_seconds", "runtime"]
    : job.kind === "execute" ? ["code", "language", "filename", "context", "auto_install", "timeout_seconds"]
      : job.kind === "command" ? ["command", "commands", "cwd", "continue_on_error", "background", "timeout_seconds"] : ["packages", "manager", "timeout_seconds"];
  const body = Object.fromEntries(fields.filter((name) => request[name] !== undefined && request[name] !== null && request[name] !== "").map((name) => [name, request[name]]));
  const made = await post(ROUTES[job.kind](job), body);
  location.hash = `#/jobs/${made.id}`;
}

export function JobPage({ id, session }) {
  const seen = useJob(id);
  const { busy, error, act } = useAction();
  const { job } = seen;
  const [raw, setRaw] = useState(false);
  const removal = useRemoval();
  const { data: box } = usePoll(job && ROUTES[job.kind] && job.kind !== "run" ? `v1/sandboxes/${job.sandbox_id}` : "", 10000);
  useTitle((job && firstLine(job.request)) || id, job && t(`kind.${job.kind}`));
  if (seen.error) return html`<div><p><a href="#/jobs">← ${t("job.back")}</a></p><${ErrorBox} error=${seen.error} /></div>`;
  if (!job) return seen.broken ? html`<p class="soft" role="status">${t("play.away")}</p>` : html`<${Loading} />`;
  const request = job.request || {};
  const state = isFinal(job.state) ? job.state : seen.state || job.state;
  const result = job.result || {};
  const { items, cut } = shownOf(seen, job);
  const artifacts = removal.left(seen.artifacts.length ? seen.artifacts : result.artifacts || []);
  const code = request.code || request.command || (request.commands || []).join("\n");
  const stopped = state === "canceled";
  const hasSecrets = (request.env_names || []).length > 0 || (request.files || []).length > 0;
  const advice = job.error && [`job.advice.${job.state}`, `job.advice.${job.error.code}`].find((key) => t(key) !== key);
  const mayRun = session.scopes.includes("run");
  const works = job.kind === "run" || (box && isOpen(box) && box.state !== "closing");
  const silent = isFinal(state) && code && !items.length && !job.error && !result.error;
  const tells = ROUTES[job.kind] || [result.packages, result.notes].some((list) => list && list.length > 0);
  return html`<article class="job-page">
    <p class="crumb"><a href="#/jobs">← ${t("job.back")}</a></p>
    <header class="bar-head">
      <h1>${t(`kind.${job.kind}`)}</h1><${Badge} state=${state} job=${job} /><${Trouble} job=${job} />
      <span class="grow"></span>
      ${mayRun && !isFinal(state) && html`<button type="button" class="danger" disabled=${busy} onClick=${() => act(() => call("DELETE", `v1/jobs/${job.id}`))}><${Icon} name="stop" />${t("job.cancel")}</button>`}
      ${mayRun && isFinal(state) && ROUTES[job.kind] && works && !hasSecrets && html`<button type="button" disabled=${busy} onClick=${() => act(() => sameAgain(job))}><${Icon} name="again" />${t("job.again")}</button>`}
      ${mayRun && request.code && html`<a class="button quiet" href=${`#/run/${job.id}`}>${t("job.edit")}</a>`}
    </header>
    <p class="ids"><${Id} id=${job.id} />${job.sandbox_id && html`<${Id} id=${job.sandbox_id} href=${`#/sandboxes/${job.sandbox_id}`} />`}</p>
    <${ErrorBox} error=${error} />
    <${Timeline} job=${{ ...job, state }} />
    <${Waits} job=${job} state=${state} />
    ${job.error && !stopped && html`<div class="error" role="alert"><strong>${t(`state.${job.state}`)}</strong><p>${code ? forPeople(job.error.message, job.kind) : job.error.message}</p>${advice && html`<p>${t(advice)}</p>`}</div>`}
    <div class="two">
      <section><h2>${t("job.request")}</h2>
        ${code && html`<${Code} code=${code} language=${request.code ? request.language || "python" : "bash"} />`}
        <${Options} request=${request} />
      </section>
      ${tells && html`<section aria-live="polite">${(items.length > 0 || (code && (!job.error || stopped))) && html`<h2>${t("job.output")}</h2>`}
        ${!isFinal(state) && seen.progress && html`<${Progress} progress=${seen.progress} />`}
        ${seen.broken && html`<p class="soft" role="status">${t("play.away")}</p>`}
        <${Output} items=${items} cut=${cut} whole=${wholeOf(job, artifacts)} live=${!isFinal(state)} />
        ${silent && html`<p class="soft">${t("output.nothing")}</p>`}
        <${Outcome} result=${result} stopped=${stopped} late=${state === "timed_out"} />
      </section>`}
    </div>
    ${removal.problem}
    ${artifacts.length > 0 && html`<section><h2>${t("job.artifacts")}</h2><${Artifacts} artifacts=${artifacts} onRemove=${mayRun && isFinal(state) && removal.remove} /></section>`}
    <details class="raw" onToggle=${(event) => setRaw(event.target.open)}><summary>${t("job.record")}</summary>${raw && html`<${Code} code=${JSON.stringify(job, null, 2)} language="json" />`}</details>
  </article>`;
}

// LABELS are the words for the fields of a request.
const LABELS = {
  language: "play.language", packages: "box.packages", manager: "packages.manager", env_names: "facts.env", name: "keys.name", image: "boxes.image", network: "boxes.network",
  allow_hosts: "boxes.hosts", secrets: "facts.secrets", runtime: "facts.runtime", labels: "boxes.tags", idle_seconds: "boxes.idleFor", on_idle: "facts.idle", path: "files.path", files: "box.files",
};

// inWords is a field of a request as text.
function inWords(name, value) {
  if (value === true) return t("yes");
  if (name === "network") return t(`boxes.network.${value}`);
  if (name.endsWith("_seconds")) return span(value).replace(".0 ", " ");
  if (name === "size") return bytes(value);
  if (name === "files") return value.map((one) => `${one.path} (${bytes(one.size)})`).join(", ");
  if (name === "labels") return Object.entries(value).map(([key, one]) => `${key}=${one}`).join(", ");
  if (Array.isArray(value) && value.every((one) => typeof one === "string")) return value.join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// Options are the fields of a request beside its code.
function Options({ request }) {
  const hidden = ["code", "command", "commands", "resources", "gpu"];
  const rows = Object.entries(request).filter(([name, value]) => !hidden.includes(name) && value !== null && value !== "" && value !== false && !(Array.isArray(value) && !value.length));
  const has = request.resources ? sizes(request.resources, request.gpu).filter(([, value]) => value !== "") : [];
  return rows.length + has.length > 0 && html`<dl class="facts">
    ${rows.map(([name, value]) => html`<div key=${name}><dt>${t(LABELS[name] || `request.${name}`)}</dt><dd><code>${inWords(name, value)}</code></dd></div>`)}
    ${has.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}
