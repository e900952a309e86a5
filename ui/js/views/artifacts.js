// Every file that jobs made, newest first.
import { html, useState, useMemo } from "../lib.js";
import { t } from "../i18n.js";
import { target } from "../api.js";
import { usePoll } from "../data.js";
import { ago, count, firstLine, shortId, when } from "../format.js";
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
const wordsOf = {
  job: (one) => [t(one ? `kind.${one.kind}` : "artifacts.job"), one && firstLine(one.request)],
  sandbox: (one) => [t("jobs.sandbox"), one && one.name],
};

// Group are the artifacts of one job or sandbox, newest first, and which that is: `one`, if it is among the newest.
function Group({ by, id, one, artifacts, onRemove }) {
  const [kind, name] = wordsOf[by](one);
  const { created_at: at } = artifacts[0];
  return html`<section class="group"><h2>${kind}: <a href=${`#/${by === "job" ? "jobs" : "sandboxes"}/${id}`} title=${id}><code>${name || shortId(id)}</code></a> <time class="soft small" datetime=${at}>${when(at)} (${ago(at)})</time></h2>
    <${Gallery} artifacts=${artifacts} onRemove=${onRemove} /></section>`;
}

export const ArtifactsPage = ({ id, session }) => (id ? html`<${One} key=${id} id=${id} />` : html`<${All} session=${session} />`);

// One is a single artifact, for who has its id.
function One({ id }) {
  useTitle(id, t("nav.artifacts"));
  const { data, error } = usePoll(`v1/artifacts/${encodeURIComponent(id)}/meta`, 0);
  const job = usePoll(data && `v1/jobs/${data.job_id}`, 0).data;
  return html`<div class="list-page">
    <p class="crumb"><a href="#/artifacts">← ${t("artifacts.back")}</a></p>
    <${ErrorBox} error=${error} />
    ${!data && !error && html`<${Loading} />`}
    ${data && html`<${Group} by="job" id=${data.job_id} one=${job} artifacts=${[data]} />`}
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
  const known = new Map(((named && named.items) || []).map((one) => [one.id, one]));
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
    ${groups.map(([id, of]) => html`<${Group} key=${id} by=${by} id=${id} one=${known.get(id)} artifacts=${of} onRemove=${session.scopes.includes("run") && removal.remove} />`)}
    ${rows.hasMore && html`<p><button type="button" disabled=${rows.loading} onClick=${rows.more}>${t("more")}</button></p>`}
  </div>`;
}
