// The playground: write code, run it in a fresh sandbox, see what it does.
import { html, useState, useEffect, useRef } from "../lib.js";
import { t } from "../i18n.js";
import { call, post } from "../api.js";
import { examples } from "../examples.js";
import { snippets } from "../snippets.js";
import { useJob, isFinal } from "../follow.js";
import { milliseconds, shortId } from "../format.js";
import { usePoll } from "../data.js";
import { Badge, Copy, Empty, ErrorBox, Icon, useAction, useTitle } from "../parts/basic.js";
import { Code, Editor } from "../parts/editor.js";
import { Artifacts, Output, Traceback } from "../parts/output.js";

const DRAFT = "sandfarm.draft";

function draft() {
  try { return JSON.parse(sessionStorage.getItem(DRAFT)) || null; } catch { return null; }
}

// again is a request that another page wants to be edited and run.
export function editAgain(request) {
  sessionStorage.setItem(DRAFT, JSON.stringify({ code: request.code || "", language: request.language || "python", packages: (request.packages || []).join(" ") }));
  location.hash = "#/";
}

export function Playground({ session }) {
  const [form, setForm] = useState(() => draft() || { code: examples[0].code, language: examples[0].language, packages: "" });
  const [jobId, setJobId] = useState("");
  const [started, setStarted] = useState(0);
  const shown = useRef(null);
  const seen = useJob(jobId);
  const { busy, error, act } = useAction();
  const images = usePoll("v1/images", 0);
  const boxes = usePoll("v1/sandboxes?state=ready,busy,hibernated&limit=50", 10000);
  const open = (boxes.data && boxes.data.items) || [];
  const box = open.find((one) => one.id === form.box); // none: a fresh one
  const languages = [...new Set(["python", "bash", ...((images.data && images.data.items) || []).flatMap((one) => one.languages)])];
  const going = jobId && !seen.error && !isFinal(seen.state);
  const change = (part) => setForm((old) => ({ ...old, ...part }));
  useEffect(() => { sessionStorage.setItem(DRAFT, JSON.stringify(form)); }, [form]);
  const body = () => {
    const packages = form.packages.split(/[\s,]+/).filter(Boolean);
    return { code: form.code, language: form.language, ...(packages.length ? { packages } : {}) };
  };
  const run = () => {
    if (busy || going || !form.code.trim()) return;
    act(async () => {
      setStarted(performance.now());
      const { packages, ...code } = body();
      const job = await (box ? post(`v1/sandboxes/${box.id}/execute`, code) : post("v1/run", { ...code, packages }));
      setJobId(job.id);
      if (matchMedia("(max-width: 60rem)").matches && shown.current) shown.current.scrollIntoView({ behavior: "smooth" });
    });
  };
  const stop = () => act(() => call("DELETE", `v1/jobs/${jobId}`));
  const pick = (name) => {
    const one = examples.find((example) => example.name === name);
    if (one) change({ code: one.code, language: one.language, packages: one.packages || "" });
  };
  useTitle(t("nav.playground"));
  const mayRun = session.scopes.includes("run");
  return html`<div class="playground">
    <section class="write" aria-label=${t("play.editor")}>
      <header class="bar-head">
        <h1>${t("nav.playground")}</h1>
        <select aria-label=${t("play.examples")} value="" onChange=${(event) => { pick(event.target.value); event.target.value = ""; }}>
          <option value="">${t("play.examples")}</option>
          ${examples.map((one) => html`<option key=${one.name} value=${one.name}>${t(`example.${one.name}`)}</option>`)}
        </select>
      </header>
      <${Editor} value=${form.code} language=${form.language} onInput=${(code) => change({ code })} onRun=${run} label=${t("play.code")} rows=${20} />
      <div class="controls">
        <select aria-label=${t("play.language")} value=${form.language} onChange=${(event) => change({ language: event.target.value })}>
          ${languages.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
        </select>
        ${open.length > 0 && html`<select aria-label=${t("play.where")} value=${box ? box.id : ""} onChange=${(event) => change({ box: event.target.value })}>
          <option value="">${t("play.fresh")}</option>${open.map((one) => html`<option key=${one.id} value=${one.id}>${one.name || shortId(one.id)}</option>`)}
        </select>`}
        <input type="text" class="grow" disabled=${Boolean(box)} aria-label=${t("play.packages")} placeholder=${t("play.packages.hint")} value=${form.packages} onInput=${(event) => change({ packages: event.target.value })} spellcheck="false" autocapitalize="off" />
        ${going
    ? html`<button type="button" class="danger" onClick=${stop}><${Icon} name="stop" />${t("play.stop")}</button>`
    : html`<button type="button" class="primary" id="run" disabled=${busy || !mayRun} onClick=${run} title="Ctrl+Enter"><${Icon} name="play" />${t("play.run")}</button>`}
      </div>
      ${!mayRun && html`<p class="soft">${t("play.readonly")}</p>`}
      ${!box && html`<${Means} body=${body()} keyless=${session.keyless} />`}
    </section>
    <section class="see" ref=${shown} aria-label=${t("play.output")} aria-live="polite" aria-busy=${Boolean(going)}>
      ${jobId ? html`<${Seen} id=${jobId} seen=${seen} started=${started} />` : !error && html`<${Empty} icon="play" title=${t("play.empty.title")}>${t("play.empty")}<//>`}
      <${ErrorBox} error=${error || seen.error} />
    </section>
  </div>`;
}

// Seen is the output of a run, while it goes on and after.
function Seen({ id, seen }) {
  const { job } = seen;
  const result = (job && job.result) || {};
  const over = isFinal(seen.state);
  return html`<div class="seen">
    <header class="bar-head">
      <${Badge} state=${seen.state || "queued"} />
      ${over && job && html`<span class="soft small">${milliseconds(job.timings.queue_ms + job.timings.run_ms + job.timings.upload_ms)}</span>`}
      ${over && job && result.exit_code > 0 && html`<span class="badge bad">exit ${result.exit_code}</span>`}
      <a class="end" href=${`#/jobs/${id}`}>${t("play.job")}</a>
    </header>
    ${!over && seen.progress && html`<${Progress} progress=${seen.progress} />`}
    ${seen.broken && html`<p class="soft" role="status">${t("play.reconnect")}</p>`}
    <${Output} items=${seen.items} cut=${seen.cut} />
    ${over && !seen.items.length && !seen.artifacts.length && !(job && job.error) && !result.error && html`<p class="soft">${t("output.nothing")}</p>`}
    <${Traceback} error=${result.error} />
    ${job && job.error && html`<div class="error"><strong>${t(`state.${job.state}`)}</strong><p>${job.error.message}</p></div>`}
    <${Artifacts} artifacts=${seen.artifacts} />
  </div>`;
}

export function Progress({ progress }) {
  const known = progress.total > 0;
  return html`<div class="progress"><span>${progress.message}</span>${html`<progress aria-label=${progress.message} value=${known ? progress.done : undefined} max=${known ? progress.total : undefined}></progress>`}</div>`;
}

// Means shows how programs make the same request.
function Means({ body, keyless }) {
  const [open, setOpen] = useState(false);
  const [name, setName] = useState("curl");
  const all = open ? snippets(body, keyless) : [];
  const one = all.find((snippet) => snippet.name === name) || all[0];
  return html`<details class="means" onToggle=${(event) => setOpen(event.target.open)}>
    <summary>${t("play.means")}</summary>
    ${one && html`<div class="choices" role="group" aria-label=${t("play.means")}>
      ${all.map((snippet) => html`<button key=${snippet.name} type="button" class="quiet" aria-pressed=${snippet.name === one.name} onClick=${() => setName(snippet.name)}>${snippet.name}</button>`)}
      <span class="grow"></span><${Copy} text=${one.text} />
    </div>
    <${Code} code=${one.text} language=${one.language} />`}
  </details>`;
}
