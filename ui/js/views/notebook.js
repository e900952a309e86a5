// What was done in a sandbox, as cells, and a cell for what comes next.
import { html, useState, useEffect, useMemo, useRef } from "../lib.js";
import { t } from "../i18n.js";
import { call, get, post } from "../api.js";
import { useList } from "../data.js";
import { firstLine, forPeople, milliseconds, shortId, trouble } from "../format.js";
import { isFinal, shownOf, useJob, wholeOf } from "../follow.js";
import { Badge, Empty, ErrorBox, Icon, Loading, Stop, Trouble, useAction } from "../parts/basic.js";
import { Code, Editor } from "../parts/editor.js";
import { Artifacts, Outcome, Output } from "../parts/output.js";
import { Running, Waits } from "../parts/timeline.js";
import { Install, Progress } from "./playground.js";

const CELLS = 30; // newest jobs that are shown at first
const NEAR = 40; // pixels from the end of the page that count as its end
const QUIET = ["file", "create", "close", "interrupt", "restart", "hibernate", "resume"];
const isWork = (job) => !QUIET.includes(job.kind);

// useNewest keeps the end of the page in sight while the page grows, unless the reader has scrolled up. It returns the ref of what is on the page, and how to go to the end.
function useNewest(ready) {
  const node = useRef(null);
  const follows = useRef(true);
  useEffect(() => {
    if (!ready) return undefined;
    const page = document.documentElement;
    let top = scrollY;
    const scrolled = () => {
      if (!node.current) return; // the page is read anew, and shorter for a while
      if (scrollY < top) follows.current = false;
      if (scrollY + innerHeight >= page.scrollHeight - NEAR) follows.current = true;
      top = scrollY;
    };
    const grown = new ResizeObserver(() => {
      if (scrollY < top) scrolled(); // of which the browser has yet to tell
      if (follows.current) scrollTo(0, page.scrollHeight);
      top = scrollY;
    });
    grown.observe(node.current.closest("main"));
    addEventListener("scroll", scrolled, { passive: true });
    return () => { grown.disconnect(); removeEventListener("scroll", scrolled); };
  }, [ready]);
  return [node, () => { follows.current = true; }];
}

export function Notebook({ id, open, mayRun }) {
  const [limit, setLimit] = useState(CELLS);
  const list = useList("v1/jobs", { sandbox_id: id }, limit, 3000);
  const [mine, setMine] = useState([]); // jobs that the list does not have yet, or not as they ended
  const jobs = useMemo(() => {
    const all = new Map(mine.map((job) => [job.id, job]));
    for (const job of (list.data && list.data.items) || []) if (!all.has(job.id) || isFinal(job.state)) all.set(job.id, job);
    return [...all.values()].sort((a, b) => Date.parse(a.created_at) - Date.parse(b.created_at));
  }, [list.data, mine]);
  const put = (job) => setMine((old) => [...old.filter((one) => one.id !== job.id).slice(-20), job]);
  const added = (job) => {
    put(job);
    follow();
  };
  const [node, follow] = useNewest(jobs.some(isWork));
  if (!list.data) return list.error ? html`<${ErrorBox} error=${list.error} />` : html`<${Loading} />`;
  return html`<div class="notebook" ref=${node}>
    ${list.data.next_cursor && limit < 200 && html`<button type="button" class="quiet" onClick=${() => setLimit(200)}>${t("cells.older")}</button>`}
    ${entriesOf(jobs).map((entry) => (Array.isArray(entry) ? html`<${Files} key=${entry[0].id} jobs=${entry} />`
    : isWork(entry) ? html`<${Cell} key=${entry.id} job=${entry} onAdded=${mayRun && open && added} onEnd=${put} />` : html`<${Note} key=${entry.id} job=${entry} />`))}
    ${!jobs.some(isWork) && html`<${Empty} icon="play" title=${t(open ? "cells.empty.title" : "cells.over")}>${open && t(mayRun ? "cells.empty" : "cells.none")}<//>`}
    ${mayRun && html`<${Next} id=${id} going=${jobs.find((job) => isWork(job) && !isFinal(job.state) && !job.request?.background)} onAdded=${added} />`}
  </div>`;
}

// entriesOf puts changes of files that follow each other together, as a list.
function entriesOf(jobs) {
  const entries = [];
  for (const job of jobs) {
    const last = entries[entries.length - 1];
    if (job.kind !== "file" || !isFinal(job.state)) entries.push(job);
    else if (Array.isArray(last)) last.push(job);
    else entries.push([job]);
  }
  return entries;
}

// Files are changes of files in one line, which opens.
const Files = ({ jobs }) => (jobs.length === 1 ? html`<${Note} job=${jobs[0]} />`
  : html`<details class="note soft small"><summary>${t("cells.files", { n: jobs.length })}</summary>${jobs.map((job) => html`<${Note} key=${job.id} job=${job} />`)}</details>`);

const Note = ({ job }) => html`<p class="note soft small"><a href=${`#/jobs/${job.id}`}>${t(`kind.${job.kind}`)}</a> ${firstLine(job.request)} ${job.state !== "completed" && html`<${Badge} state=${job.state} />`}
  <${Trouble} job=${job} /> ${job.kind === "create" && trouble(job) && html`<a href=${`#/sandboxes/${job.sandbox_id}/packages`}>${t("box.packages")}</a>`}</p>`;

function Cell({ job, onAdded, onEnd }) {
  // a job that was over when the page came needs no stream
  const [follow] = useState(!isFinal(job.state));
  const seen = useJob(follow ? job.id : "", onEnd);
  const [whole, setWhole] = useState(null);
  const current = seen.job && isFinal(seen.job.state) ? seen.job : whole || job;
  useEffect(() => {
    if (!follow && !job.result) get(`v1/jobs/${job.id}`).then(setWhole, () => {});
  }, [job.id]);
  const { busy, error, act } = useAction();
  const again = () => busy || act(async () => {
    const { code, language, context, timeout_seconds } = await get(`v1/jobs/${job.id}/request`);
    onAdded(await post(`v1/sandboxes/${job.sandbox_id}/execute`, { code, language, context, timeout_seconds, auto_install: true }));
  });
  const state = follow && seen.state ? seen.state : current.state;
  const result = current.result || {};
  const { items, cut } = shownOf(seen, current);
  const request = job.request || {};
  const code = request.code || request.command || (request.commands || []).join("\n") || (request.packages ? `install ${request.packages.join(" ")}` : "");
  const artifacts = follow && seen.artifacts.length ? seen.artifacts : result.artifacts || [];
  return html`<section class="cell" aria-label=${shortId(job.id)}>
    <header><${Badge} state=${state} job=${current} /><${Trouble} job=${current} /><span class="soft small">${t(`kind.${job.kind}`)}</span>
      ${isFinal(state) ? html`<span class="soft small">${milliseconds(current.timings.run_ms)}</span>` : !seen.broken && html`<${Running} job=${seen.job || job} />`}
      ${result.execution_count > 0 && html`<span class="soft small">[${result.execution_count}]</span>`}
      <a class="end small" href=${`#/jobs/${job.id}`}>${t("play.job")}</a></header>
    ${code && html`<${Code} code=${code} language=${request.code ? request.language || "python" : "bash"} />`}
    <${Waits} job=${seen.job} state=${state} />
    ${seen.broken && html`<p class="soft" role="status">${t("play.away")}</p>`}
    ${!isFinal(state) && seen.progress && html`<${Progress} progress=${seen.progress} />`}
    <${Output} items=${items} cut=${cut} whole=${wholeOf(current, artifacts)} live=${!isFinal(state)} />
    <${Outcome} result=${result} stopped=${state === "canceled"} late=${state === "timed_out"}>${job.kind === "execute" && html`<${Install} job=${current} onInstall=${onAdded && again} />`}<//>
    <${ErrorBox} error=${error} />
    ${current.error && state !== "canceled" && html`<div class="error"><strong>${t(`state.${current.state}`)}</strong><p>${forPeople(current.error.message, job.kind)}</p></div>`}
    <${Artifacts} artifacts=${artifacts} />
  </section>`;
}

// Next is the cell for what comes next: code for the kernel, commands for the shell, or packages. `going` is the first job of the sandbox that is not
// over and that others wait for, which it can stop.
function Next({ id, going, onAdded }) {
  const [kind, setKind] = useState("execute");
  const [code, setCode] = useState("");
  const { busy, error, act } = useAction();
  const path = `v1/sandboxes/${encodeURIComponent(id)}`;
  const run = () => {
    if (busy || !code.trim()) return;
    act(async () => {
      const job = kind === "execute" ? await post(`${path}/execute`, { code })
        : kind === "command" ? await post(`${path}/commands`, { command: code }) : await post(`${path}/packages`, { packages: code.split(/[\s,]+/).filter(Boolean) });
      setCode("");
      onAdded(job);
    });
  };
  return html`<section class="cell next" aria-label=${t("cells.next")}>
    <${Editor} value=${code} language=${kind === "execute" ? "python" : "bash"} onInput=${setCode} onRun=${run} label=${t("cells.next")} rows=${Math.min(16, Math.max(3, code.split("\n").length + 1))} />
    <div class="controls">
      <div class="choices" role="group" aria-label=${t("jobs.kind")}>${["execute", "command", "install"].map((one) => html`<button key=${one} type="button" class="quiet" aria-pressed=${one === kind} onClick=${() => setKind(one)}>${t(`cells.${one}`)}</button>`)}</div>
      <span class="grow"></span>
      ${going && html`<${Stop} key="stop" disabled=${busy} onClick=${() => act(() => call("DELETE", `v1/jobs/${going.id}`))} />`}
      ${(!going || code.trim()) && html`<button key="run" type="button" class="primary" id="run" disabled=${busy || !code.trim()} onClick=${run} title="Ctrl+Enter"><${Icon} name="play" />${t("play.run")}</button>`}
    </div>
    <${ErrorBox} error=${error} />
  </section>`;
}
