// The list of sandboxes.
import { html, useState, useMemo, useRef } from "../lib.js";
import { t } from "../i18n.js";
import { useNow } from "../data.js";
import { ago, bytes, shortId, until } from "../format.js";
import { Badge, Empty, ErrorBox, Heads, Icon, Loading, useTitle } from "../parts/basic.js";
import { Line } from "../parts/use.js";
import { Create } from "./create.js";
import { useRows, Window } from "./jobs.js";

const LABELS = 200; // that the filter lists
const SAMPLES = 20; // of a sandbox's use that the farm keeps
const OPEN = "queued,starting,ready,busy,hibernated,closing";

export function Sandboxes({ session }) {
  const [states, setStates] = useState(OPEN);
  const [search, setSearch] = useState("");
  const [making, setMaking] = useState(false);
  const label = search.includes("=") ? search.trim() : "";
  const rows = useRows("v1/sandboxes", { state: states, label }, 3000);
  useTitle(t("nav.sandboxes"));
  const now = useNow(5000);
  const word = label ? "" : search.trim().toLowerCase();
  const items = rows.items.filter((one) => !word || one.id.includes(word) || one.name.toLowerCase().includes(word) || Object.entries(one.labels || {}).some(([k, v]) => `${k}=${v}`.toLowerCase().includes(word)));
  const labels = [...new Set(rows.items.flatMap((one) => Object.entries(one.labels || {}).map(([key, value]) => `${key}=${value}`)))].sort().slice(0, LABELS);
  const end = useRef(null);
  end.current = rows.more;
  const onEnd = useMemo(() => () => end.current(), []);
  return html`<div class="list-page">
    <header class="bar-head">
      <h1>${t("nav.sandboxes")}</h1>
      <input type="search" placeholder=${t("boxes.search")} aria-label=${t("boxes.search")} value=${search} onInput=${(event) => setSearch(event.target.value)} />
      ${(labels.length > 0 || label) && html`<select aria-label=${t("boxes.labels")} value=${label} onChange=${(event) => setSearch(event.target.value)}>
        <option value="">${t("boxes.labels")}</option>${[...new Set([...(label ? [label] : []), ...labels])].map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
      </select>`}
      <select aria-label=${t("jobs.state")} value=${states} onChange=${(event) => setStates(event.target.value)}>
        <option value=${OPEN}>${t("boxes.open")}</option><option value="">${t("boxes.all")}</option><option value="hibernated">${t("state.hibernated")}</option>
        <option value="closed,expired">${t("state.closed")}</option><option value="failed,lost">${t("boxes.broken")}</option>
      </select>
      <span class="grow"></span>
      ${session.scopes.includes("run") && html`<button type="button" class="primary" onClick=${() => setMaking(true)}><${Icon} name="plus" />${t("boxes.new")}</button>`}
    </header>
    <${ErrorBox} error=${rows.error} />
    ${!rows.first && !rows.error && html`<${Loading} />`}
    ${rows.first && items.length === 0 && html`<${Empty} icon="box" title=${t(search || states !== OPEN ? "boxes.none.title" : "boxes.empty.title")}>${t(search || states !== OPEN ? "boxes.none" : "boxes.empty")}<//>`}
    ${items.length > 0 && html`<${Heads} of="box" names=${["jobs.state", "keys.name", "boxes.image", "boxes.use", "boxes.times"].map((key) => t(key))} /><${Window} count=${items.length} height=${58} label=${t("nav.sandboxes")} onEnd=${onEnd} row=${(i, style) => html`<${Row} key=${items[i].id} box=${items[i]} now=${now} style=${style} />`} />`}
    ${making && html`<${Create} allowlist=${session.allowlist} onClose=${() => setMaking(false)} />`}
  </div>`;
}

const isOpen = (box) => OPEN.split(",").includes(box.state);

const SHOWN = 2; // labels of a row; the others are counted

function Row({ box, now, style }) {
  const labels = Object.entries(box.labels || {}).map(([key, value]) => `${key}=${value}`);
  const more = labels.length - SHOWN;
  return html`<li style=${style}><a class="row box" data-row href=${`#/sandboxes/${box.id}`}>
  <${Badge} state=${box.state} />
  <span class="what" title=${[box.name, ...labels].join("\n")}><strong>${box.name || shortId(box.id)}</strong>${labels.length > 0 && html`<span class="labels">${labels.slice(0, SHOWN).map((one) => html`<span class="label" key=${one}>${one}</span>`)}${more > 0 && html`<span class="soft small">+${more}</span>`}</span>`}</span>
  <span class="soft meta">${box.image}<br />${bytes(box.resources.memory_mb * 1048576)} · ${t("boxes.cores", { n: box.resources.cpus })}${box.gpu && box.gpu.count ? ` · ${box.gpu.count} GPU` : ""}</span>
  <${Spark} box=${box} />
  <span class="times"><time class="soft" datetime=${box.created_at} title=${box.created_at}>${ago(box.created_at, now)}</time>
  <span class="soft until" title=${isOpen(box) ? until(box, now) : ""}>${isOpen(box) ? until(box, now, true) : box.reason}</span></span>
</a></li>`;
}

// Spark shows what a sandbox used of its cores and of its memory of late.
function Spark({ box }) {
  const usage = box.usage || [];
  const last = usage[usage.length - 1];
  if (usage.length < 2 || !isOpen(box)) return html`<span class="sparks"></span>`;
  const cores = t("use.cores", { n: last.cpus.toFixed(1), all: box.resources.cpus });
  const memory = t("boxes.used", { n: bytes(last.memory_mb * 1048576), all: bytes(box.resources.memory_mb * 1048576) });
  return html`<span class="sparks" title=${`${cores}, ${memory}`}>
    <${Line} values=${usage.map((one) => one.cpus)} top=${box.resources.cpus} label=${cores} width=${SAMPLES} />
    <${Line} values=${usage.map((one) => one.memory_mb)} top=${box.resources.memory_mb} label=${memory} width=${SAMPLES} />
  </span>`;
}

export { isOpen };
