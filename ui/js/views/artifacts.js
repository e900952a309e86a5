// Every file that jobs made, newest first.
import { html, useState, useMemo } from "../lib.js";
import { t } from "../i18n.js";
import { target } from "../api.js";
import { usePoll } from "../data.js";
import { ago, count, firstLine } from "../format.js";
import { Empty, ErrorBox, Loading, useTitle } from "../parts/basic.js";
import { Artifacts as Gallery, isPicture, useRemoval } from "../parts/output.js";
import { useRows } from "./jobs.js";

// IDS are the fields by which the farm finds what belongs to a whole id.
const IDS = [[/^job_[0-9a-z]{26}$/, "job_id"], [/^sbx_[0-9a-z]{26}$/, "sandbox_id"]];

// asked is the part of a search that the farm answers: a whole id, or a whole name. Other words are sought among what is loaded.
function asked(word) {
  const id = IDS.find(([form]) => form.test(word));
  if (id) return { [id[1]]: word };
  return word.includes(".") ? { name: word } : {};
}

// NAMED are the newest jobs and sandboxes, by whose names groups are called that are of them.
const NAMED = 200;
const nameOf = { job: (one) => firstLine(one.request), sandbox: (one) => one.name };

export const ArtifactsPage = ({ id, session }) => (id ? html`<${One} key=${id} id=${id} />` : html`<${All} session=${session} />`);

// One is a single artifact, for who has its id.
function One({ id }) {
  useTitle(id, t("nav.artifacts"));
  const { data, error } = usePoll(`v1/artifacts/${encodeURIComponent(id)}/meta`, 0);
  return html`<div class="list-page">
    <p class="crumb"><a href="#/artifacts">← ${t("artifacts.back")}</a></p>
    <${ErrorBox} error=${error} />
    ${!data && !error && html`<${Loading} />`}
    ${data && html`<section class="group"><h2><a href=${`#/jobs/${data.job_id}`}><code>${data.job_id}</code></a> <span class="soft small">${ago(data.created_at)}</span></h2><${Gallery} artifacts=${[data]} /></section>`}
  </div>`;
}

function All({ session }) {
  useTitle(t("nav.artifacts"));
  const [search, setSearch] = useState("");
  const [kind, setKind] = useState("");
  const [by, setBy] = useState("job");
  const query = asked(search.trim());
  const rows = useRows("v1/artifacts", query, 0);
  const removal = useRemoval();
  const named = usePoll(target(by === "job" ? "v1/jobs" : "v1/sandboxes", { limit: NAMED }), 0).data;
  const names = new Map(((named && named.items) || []).map((one) => [one.id, nameOf[by](one)]));
  const word = search.trim().toLowerCase();
  const items = removal.left(rows.items).filter((one) => (!kind || isPicture(one.content_type) === (kind === "pictures")) && (!word || one.path.toLowerCase().includes(word) || one.job_id.includes(word) || one.sandbox_id.includes(word)));
  // one group for each job or sandbox, in the order of the list
  const groups = useMemo(() => [...items.reduce((all, one) => {
    const of = one[`${by}_id`];
    return all.set(of, [...(all.get(of) || []), one]);
  }, new Map())], [items, by]);
  return html`<div class="list-page">
    <header class="bar-head"><h1>${t("nav.artifacts")}</h1>
      <input type="search" placeholder=${t("artifacts.search")} aria-label=${t("artifacts.search")} value=${search} onInput=${(event) => setSearch(event.target.value)} />
      <select aria-label=${t("jobs.kind")} value=${kind} onChange=${(event) => setKind(event.target.value)}><option value="">${t("artifacts.all")}</option><option value="pictures">${t("artifacts.pictures")}</option><option value="files">${t("artifacts.files")}</option></select>
      <select aria-label=${t("artifacts.by")} value=${by} onChange=${(event) => setBy(event.target.value)}><option value="job">${t("artifacts.byJob")}</option><option value="sandbox">${t("artifacts.bySandbox")}</option></select>
    </header>
    <${ErrorBox} error=${rows.error} />${removal.problem}
    ${!rows.first && !rows.error && html`<${Loading} />`}
    ${rows.first && items.length === 0 && (word || kind
    ? html`<${Empty} icon="image" title=${t(rows.hasMore ? "artifacts.notYet.title" : "artifacts.none.title", { n: count(rows.items.length) })}>${t(rows.hasMore ? "artifacts.notYet" : query.name ? "artifacts.none.name" : "artifacts.none")}<//>`
    : html`<${Empty} icon="image" title=${t("artifacts.empty.title")}>${t("artifacts.empty")}<//>`)}
    ${groups.map(([id, of]) => html`<section class="group" key=${id}><h2><a href=${`#/${by === "job" ? "jobs" : "sandboxes"}/${id}`} title=${id}><code>${names.get(id) || id}</code></a> <span class="soft small">${ago(of[0].created_at)}</span></h2><${Gallery} artifacts=${of} onRemove=${session.scopes.includes("run") && removal.remove} /></section>`)}
    ${rows.hasMore && html`<p><button type="button" disabled=${rows.loading} onClick=${rows.more}>${t("more")}</button></p>`}
  </div>`;
}
