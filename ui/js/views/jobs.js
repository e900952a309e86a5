// The list of jobs: live at its top, older pages as one scrolls. Only the rows in sight are elements, so thousands cost nothing.
import { html, useState, useEffect, useRef, useMemo } from "../lib.js";
import { t } from "../i18n.js";
import { get, target } from "../api.js";
import { useList, useNow } from "../data.js";
import { ago, firstLine, milliseconds, shortId } from "../format.js";
import { isFinal } from "../follow.js";
import { Badge, Empty, ErrorBox, Heads, Loading, Trouble, useTitle } from "../parts/basic.js";

const PAGE = 50;
const STATES = ["queued", "running", "completed", "failed", "timed_out", "canceled", "lost"];
const WRONG = "wrong"; // what is no state: the outcome of jobs whose code failed, too
const KINDS = ["run", "execute", "command", "install", "create", "close", "file", "interrupt", "restart", "hibernate", "resume"];

const FINISHED = 60000; // milliseconds after which jobs are read again that have ended: all that happens to them is that they are removed

// joinIds puts newer entries on top of those that they do not have.
function joinIds(newer, older) {
  const ids = new Set(newer.map((one) => one.id));
  return [...newer, ...older.filter((one) => !ids.has(one.id))];
}

// useRows is a list that is read anew at its top and longer at its end.
export function useRows(path, query, every, whole) {
  const first = useList(path, query, PAGE, every, whole);
  const [older, setOlder] = useState({ items: [], cursor: undefined });
  const [loading, setLoading] = useState(false);
  const [error, setError] = useState(null);
  const key = JSON.stringify(query);
  useEffect(() => setOlder({ items: [], cursor: undefined }), [key]);
  // once there is more than the top page, what moves on from it is kept, so nothing falls between the two
  useEffect(() => first.data && setOlder((old) => (old.cursor === undefined ? old : { ...old, items: joinIds(first.data.items, old.items) })), [first.data]);
  const items = useMemo(() => joinIds((first.data && first.data.items) || [], older.items), [first.data, older.items]);
  const cursor = older.cursor === undefined ? first.data && first.data.next_cursor : older.cursor;
  const more = async () => {
    if (loading || !cursor) return;
    setLoading(true);
    try {
      const page = await get(path, { ...query, limit: 200, cursor });
      setOlder((old) => ({ items: [...(old.cursor === undefined ? first.data.items : []), ...old.items, ...page.items], cursor: page.next_cursor }));
    } catch (problem) {
      setError(problem);
    } finally {
      setLoading(false);
    }
  };
  return { items, more, hasMore: Boolean(cursor), loading, first: first.data, error: error || first.error };
}

// Window draws those of many rows of one height that are in sight.
export function Window({ count, height, row, label, onEnd }) {
  const node = useRef(null);
  const [range, setRange] = useState([0, 40]);
  useEffect(() => {
    let frame = 0;
    const look = () => {
      frame = 0;
      if (!node.current) return;
      const top = node.current.getBoundingClientRect().top;
      const from = Math.max(0, Math.floor(-top / height) - 10);
      const to = Math.min(count, Math.ceil((innerHeight - top) / height) + 10);
      setRange((old) => (old[0] === from && old[1] === to ? old : [from, to]));
      if (to >= count && onEnd) onEnd();
    };
    const scrolled = () => { if (!frame) frame = requestAnimationFrame(look); };
    addEventListener("scroll", scrolled, { passive: true });
    addEventListener("resize", scrolled);
    look();
    return () => { removeEventListener("scroll", scrolled); removeEventListener("resize", scrolled); cancelAnimationFrame(frame); };
  }, [count, height, onEnd]);
  const rows = [];
  for (let i = range[0]; i < Math.min(range[1], count); i += 1) rows.push(row(i, { position: "absolute", top: `${i * height}px`, height: `${height}px`, left: 0, right: 0 }));
  return html`<ul class="rows" aria-label=${label} ref=${node} style=${{ height: `${count * height}px` }}>${rows}</ul>`;
}

export function took(job, now) {
  if (job.finished_at) return milliseconds(Date.parse(job.finished_at) - Date.parse(job.created_at));
  return milliseconds(now - Date.parse(job.created_at));
}

// filterHere is the filter in the address, which a reload and a link keep.
function filterHere() {
  const query = new URLSearchParams(location.hash.split("?")[1]);
  return { state: query.get("state") || "", kind: query.get("kind") || "", outcome: query.get("outcome") || "", sandbox_id: query.get("sandbox_id") || "" };
}

export function Jobs() {
  const filter = filterHere();
  const change = (part) => { location.hash = target("#/jobs", { ...filterHere(), ...part }); };
  const [search, setSearch] = useState("");
  const rows = useRows("v1/jobs", filter, 3000, FINISHED);
  const now = useNow(1000);
  const find = (event) => {
    event.preventDefault();
    const id = search.trim();
    if (id.startsWith("sbx_")) location.hash = `#/sandboxes/${encodeURIComponent(id)}`;
    else if (id) location.hash = `#/jobs/${encodeURIComponent(id)}`;
  };
  const choose = (state) => change({ state: state === WRONG ? "" : state, outcome: state === WRONG ? "failed" : "" });
  useTitle(t("nav.jobs"));
  const filtered = Object.values(filter).some(Boolean);
  const end = useRef(null);
  end.current = rows.more;
  const onEnd = useMemo(() => () => end.current(), []);
  return html`<div class="list-page">
    <header class="bar-head">
      <h1>${t("nav.jobs")}</h1>
      <form role="search" onSubmit=${find}><input type="search" placeholder=${t("jobs.search")} aria-label=${t("jobs.search")} value=${search} onInput=${(event) => setSearch(event.target.value)} /></form>
      <input type="text" class="filter" placeholder=${t("jobs.any.sandbox")} aria-label=${t("jobs.sandbox")} value=${filter.sandbox_id} onChange=${(event) => change({ sandbox_id: event.target.value.trim() })} spellcheck=${false} autocapitalize="off" />
      <select aria-label=${t("jobs.state")} value=${filter.outcome ? WRONG : filter.state} onChange=${(event) => choose(event.target.value)}>
        <option value="">${t("jobs.any.state")}</option><option value=${WRONG}>${t("jobs.wrong")}</option>${STATES.map((one) => html`<option key=${one} value=${one}>${t(`state.${one}`)}</option>`)}
      </select>
      <select aria-label=${t("jobs.kind")} value=${filter.kind} onChange=${(event) => change({ kind: event.target.value })}>
        <option value="">${t("jobs.any.kind")}</option>${KINDS.map((one) => html`<option key=${one} value=${one}>${t(`kind.${one}`)}</option>`)}
      </select>
    </header>
    <${ErrorBox} error=${rows.error} />
    ${!rows.first && !rows.error && html`<${Loading} />`}
    ${rows.first && rows.items.length === 0 && (filtered
    ? html`<${Empty} icon="list" title=${t("jobs.none.title")}>${t("jobs.none")}${filter.state === "failed" && html` ${t("jobs.none.failed")} <a href=${target("#/jobs", { ...filter, state: "", outcome: "failed" })}>${t("jobs.wrong")}</a>`}<//>`
    : html`<${Empty} icon="list" title=${t("jobs.empty.title")}>${t("jobs.empty")} <a href="#/">${t("nav.playground")}</a><//>`)}
    ${rows.items.length > 0 && html`<${Heads} of="job" names=${["jobs.state", "jobs.kind", "jobs.what", "jobs.took", "jobs.when"].map((key) => t(key))} /><${Window} count=${rows.items.length} height=${52} label=${t("nav.jobs")} onEnd=${onEnd}
      row=${(i, style) => html`<${Row} key=${rows.items[i].id} job=${rows.items[i]} now=${now} style=${style} />`} />`}
    ${rows.loading && html`<${Loading} />`}
  </div>`;
}

const Row = ({ job, now, style }) => html`<li style=${style}><a class="row job" data-row href=${`#/jobs/${job.id}`}>
  <${Badge} state=${job.state} job=${job} />
  <span class="kind soft">${t(`kind.${job.kind}`)}</span>
  <span class="what"><code>${firstLine(job.request) || shortId(job.sandbox_id || job.id)}</code><${Trouble} job=${job} /></span>
  <span class="took">${isFinal(job.state) || job.state === "running" ? took(job, now) : ""}</span>
  <time class="soft" datetime=${job.created_at} title=${job.created_at}>${ago(job.created_at, now)}</time>
</a></li>`;
