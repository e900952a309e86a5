// The playground: write code, run it in a fresh sandbox, see what it does.
import { html, useState, useEffect } from "../lib.js";
import { t } from "../i18n.js";
import { call, get, post } from "../api.js";
import { examples } from "../examples.js";
import { CLI_PATH, snippets } from "../snippets.js";
import { useJob, isFinal, wholeOf } from "../follow.js";
import { firstLine, forPeople, milliseconds, shortId, words } from "../format.js";
import { usePoll } from "../data.js";
import { Badge, Copy, Empty, ErrorBox, Field, Icon, Stop, Trouble, useAction, useTitle } from "../parts/basic.js";
import { Code, Editor, replace } from "../parts/editor.js";
import { Artifacts, Outcome, Output, useTail } from "../parts/output.js";
import { Running, Waits } from "../parts/timeline.js";

const DRAFT = "sandfarm.draft";

function draft() {
  try { return JSON.parse(sessionStorage.getItem(DRAFT)) || null; } catch { return null; }
}


// Playground shows the run of the job `id`, if there is one, and its code, which can be changed and run again.
export function Playground({ id, session }) {
  const [form, setForm] = useState(() => draft() || { code: examples[0].code, language: examples[0].language, packages: "" });
  const seen = useJob(id, (job) => { // what a run installed by itself, the next one in a fresh sandbox needs, too
    const names = job.request.auto_install ? ((job.result && job.result.installed) || []).filter((one) => one.status !== "failed").map((one) => one.name) : [];
    if (names.length) setForm((old) => ({ ...old, packages: [...new Set([...words(old.packages), ...names])].join(" ") }));
  });
  const { busy, error, act, setError } = useAction();
  const [left, setLeft] = useState(""); // the run that another one was to follow: what came of it is out of date
  const [said, setSaid] = useState(""); // why nothing was run
  const images = usePoll("v1/images", 0);
  const boxes = usePoll("v1/sandboxes?state=ready,busy,hibernated&limit=50", 10000);
  const open = ((boxes.data && boxes.data.items) || []).filter((one) => !one.one_shot);
  const box = open.find((one) => one.id === form.box); // none: a fresh one
  const languages = [...new Set(["python", "bash", ...((images.data && images.data.items) || []).flatMap((one) => one.languages)])];
  useEffect(() => setLeft(""), [id]);
  useEffect(() => { if (error && error.status === 0 && boxes.data) setError(null); }, [boxes.data]); // the farm is there again
  const away = boxes.error && boxes.error.status === 0 ? boxes.error : null;
  const going = Boolean(id && !seen.error && !isFinal(seen.state));
  const tail = useTail(going || Boolean(id && !seen.error && !isFinal(seen.job && seen.job.state))); // the record comes after the end
  useEffect(() => setSaid(""), [going, form.code]);
  const change = (part) => setForm((old) => ({ ...old, ...part }));
  useEffect(() => { sessionStorage.setItem(DRAFT, JSON.stringify(form)); }, [form]);
  useEffect(() => {
    const { job } = seen;
    if (!job || job.id !== id || form.job === id || !job.request.code) return;
    act(async () => {
      const request = await get(job.links.request.replace(/^\//, ""));
      change({ code: request.code, language: request.language, packages: (request.packages || []).join(" "), box: job.kind === "execute" ? job.sandbox_id : "", job: id });
    });
  }, [id, seen.job]);
  const body = () => {
    const packages = words(form.packages);
    const resources = { ...(form.memory && { memory_mb: Number(form.memory) }), ...(form.cpus && { cpus: Number(form.cpus) }) };
    return { code: form.code, language: form.language, ...(packages.length ? { packages } : {}), ...(form.timeout ? { timeout_seconds: Number(form.timeout) } : {}), ...(Object.keys(resources).length && !box ? { resources } : {}) };
  };
  const run = (options) => {
    if (busy) return;
    if (going || !form.code.trim()) {
      setSaid(going ? "play.going" : "play.nocode");
      return;
    }
    setLeft(id);
    act(async () => {
      const { packages, ...code } = body();
      const sent = box ? post(`v1/sandboxes/${box.id}/execute`, { ...code, ...options }) : post("v1/run", { ...code, packages, ...options });
      const job = await sent.catch((problem) => {
        if (id) location.hash = "#/"; // which named the run before
        throw problem;
      });
      change({ job: job.id });
      location.hash = `#/run/${job.id}`;
      if (matchMedia("(max-width: 60rem)").matches && tail.ref.current) tail.ref.current.scrollIntoView({ behavior: "smooth" });
    });
  };
  const stop = () => act(() => call("DELETE", `v1/jobs/${id}`));
  const pick = (name) => {
    const one = examples.find((example) => example.name === name);
    if (!one) return;
    replace(tail.ref.current.parentNode.querySelector(".write textarea"), one.code);
    change({ language: one.language, packages: one.packages || "" });
  };
  useTitle(id && seen.job && firstLine(seen.job.request), t("nav.playground"));
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
      <${Editor} value=${form.code} language=${form.language} onInput=${(code) => change({ code })} onRun=${() => run()} label=${t("play.code")} rows=${20} />
      <div class="controls">
        <select aria-label=${t("play.language")} value=${form.language} onChange=${(event) => change({ language: event.target.value })}>
          ${languages.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
        </select>
        ${open.length > 0 && html`<select aria-label=${t("play.where")} value=${box ? box.id : ""} onChange=${(event) => change({ box: event.target.value })}>
          <option value="">${t("play.fresh")}</option>${open.map((one) => html`<option key=${one.id} value=${one.id}>${one.name || shortId(one.id)}</option>`)}
        </select>`}
        <input type="text" class="grow" disabled=${Boolean(box)} aria-label=${t("play.packages")} placeholder=${t("play.packages.hint")} value=${form.packages} onInput=${(event) => change({ packages: event.target.value })} spellcheck=${false} autocapitalize="off" />
        ${going
    ? html`<${Stop} key="stop" onClick=${stop} />`
    : html`<button key="run" type="button" class="primary" id="run" disabled=${busy || !mayRun} onClick=${() => run()} title="Ctrl+Enter"><${Icon} name="play" />${t("play.run")}</button>`}
      </div>
      <p class="said" role="status">${said && t(said)}</p>
      ${!mayRun && html`<p class="soft">${t("play.readonly")}</p>`}
      <${Options} form=${form} change=${change} fresh=${!box} error=${error} />
      ${!box && html`<${Means} body=${body()} keyless=${session.keyless} />`}
    </section>
    <section class="see" ...${tail} aria-label=${t("play.output")} aria-live="polite" aria-busy=${going}>
      ${id && id !== left && (seen.state || !seen.error) ? html`<${Seen} id=${id} seen=${seen} onInstall=${mayRun && (() => run({ auto_install: true }))} />` : !busy && !error && !seen.error && html`<${Empty} icon="play" title=${t("play.empty.title")}>${box ? t("play.empty.box", { name: box.name || shortId(box.id) }) : t("play.empty")}<//>`}
      <${ErrorBox} error=${error || seen.error || (!seen.broken && away)} />
    </section>
  </div>`;
}

// MISSING names the module in the message of a ModuleNotFoundError.
const MISSING = /^No module named '(\w+)/;

// Install offers to run code again with the module that it lacks, if it did not install what it imports.
export function Install({ job, onInstall }) {
  const error = job && job.result && job.result.error;
  const missing = error && error.name === "ModuleNotFoundError" && !job.request.auto_install && (error.value.match(MISSING) || [])[1];
  return missing && onInstall && html`<p class="after"><button type="button" id="install" onClick=${onInstall}><${Icon} name="download" />${t("play.install", { name: missing })}</button></p>`;
}

// Seen is the output of a run, while it goes on and after. onInstall runs the code again with what it imports.
function Seen({ id, seen, onInstall }) {
  const { job } = seen;
  const result = (job && job.result) || {};
  const over = isFinal(seen.state);
  const stopped = seen.state === "canceled";
  return html`<div class="seen">
    <header class="bar-head">
      <${Badge} state=${seen.state || "queued"} job=${job} />
      ${over && job && isFinal(job.state) && html`<span class="soft small">${milliseconds(job.timings.run_ms)}${(result.installed || []).length > 0 ? `, ${t("play.installed", { span: milliseconds(Date.parse(job.finished_at) - Date.parse(job.created_at)) })}` : ""}</span>`}
      ${!over && !seen.broken && html`<${Running} job=${job} />`}
      <${Trouble} job=${job} />
      <a class="end" href=${`#/jobs/${id}`}>${t("play.job")}</a>
    </header>
    <${Waits} job=${job} state=${seen.state} />
    ${!over && seen.progress && html`<${Progress} progress=${seen.progress} />`}
    ${seen.broken && html`<p class="soft" role="status">${t("play.away")}</p>`}
    <${Output} items=${seen.items} cut=${seen.cut} whole=${wholeOf(job, seen.artifacts)} live=${!over} />
    ${over && !seen.items.length && !seen.artifacts.length && !(job && job.error) && !result.error && html`<p class="soft">${t("output.nothing")}</p>`}
    <${Outcome} result=${result} stopped=${stopped} late=${seen.state === "timed_out"}><${Install} job=${job} onInstall=${onInstall} /><//>
    ${job && job.error && !stopped && html`<div class="error"><strong>${t(`state.${job.state}`)}</strong><p>${forPeople(job.error.message)}</p></div>`}
    <${Artifacts} artifacts=${seen.artifacts} />
  </div>`;
}

export function Progress({ progress }) {
  const known = progress.total > 0;
  return html`<div class="progress"><span>${progress.message}</span>${html`<progress aria-label=${progress.message} value=${known ? progress.done : undefined} max=${known ? progress.total : undefined}></progress>`}</div>`;
}

// SIZES are the quotas that a smaller sandbox may fit into.
const SIZES = ["max_memory_mb", "max_cpus"];

// Options are what few runs need. They open for an error about one of them.
function Options({ form, change, fresh, error }) {
  const limits = usePoll("v1/limits", 0).data;
  const [open, setOpen] = useState(Boolean(form.timeout || form.memory || form.cpus)); // those that are set are shown at first
  const about = (one) => ["/timeout_seconds", "/resources/memory_mb", "/resources/cpus"].includes(one.pointer);
  useEffect(() => { if (error && ((error.quota && SIZES.includes(error.quota.name)) || (error.errors || []).some(about))) setOpen(true); }, [error]);
  const number = (name, rest) => html`<input type="number" value=${form[name] || ""} onInput=${(event) => change({ [name]: event.target.value })} ...${rest} />`;
  const size = (range, step) => (range ? { min: range.min, max: range.max, step, placeholder: range.default } : { step });
  return html`<details class="means" open=${open} onToggle=${(event) => setOpen(event.target.open)}>
    <summary>${t("play.options")}</summary>
    <div class="side-by-side three">
      <${Field} label=${t("play.timeout")}>${number("timeout", { min: 1, step: 1, max: limits ? limits.timeout_max_seconds : undefined, placeholder: limits ? limits.timeout_default_seconds : "" })}<//>
      ${fresh && html`<${Field} label=${t("boxes.memoryMB")}>${number("memory", size(limits && limits.memory_mb, 1))}<//>
      <${Field} label=${t("facts.cpus")}>${number("cpus", size(limits && limits.cpus, "any"))}<//>`}
    </div>
  </details>`;
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
    <${Code} code=${one.text} language=${one.language} />
    ${one.name === "CLI" && html`<p class="soft small after">${t("cli.where")} <code>${CLI_PATH}</code></p>`}`}
  </details>`;
}
