// The packages of a sandbox, and what became of installs.
import { html, useState } from "../lib.js";
import { t } from "../i18n.js";
import { usePoll } from "../data.js";
import { count } from "../format.js";
import { ErrorBox, Grid, Loading } from "../parts/basic.js";

const TONES = { installed: "good", failed: "bad", installing: "live", queued: "wait" };

export function Packages({ path, open }) {
  const { data, error } = usePoll(open ? `${path}/packages` : "", 5000);
  const [search, setSearch] = useState("");
  if (!open) return html`<p class="soft">${t("box.over")}</p>`;
  if (!data) return error ? html`<${ErrorBox} error=${error} />` : html`<${Loading} />`;
  const word = search.trim().toLowerCase();
  // what is under way or has failed is what one comes to see
  const items = data.items.filter((one) => one.name.toLowerCase().includes(word)).sort((a, b) => (a.status === "installed") - (b.status === "installed") || a.name.localeCompare(b.name));
  return html`<div class="bar-head"><input type="search" placeholder=${t("packages.search")} aria-label=${t("packages.search")} value=${search} onInput=${(event) => setSearch(event.target.value)} /><span class="soft small">${count(items.length)}</span></div>
    <${ErrorBox} error=${error} />
    <${Grid} label=${t("box.packages")} named heads=${[[t("packages.name")], [t("packages.version")], [t("jobs.state"), "wrap"], [t("packages.manager")]]}
      rows=${items.map((one) => [`${one.manager} ${one.name}`, one.name, one.version, html`<span class=${`badge ${TONES[one.status] || "dull"}`}>${one.status}</span> <span class="soft small">${one.message}</span>`, one.manager])} />
  ${items.length === 0 && html`<p class="soft after">${t("packages.none")}</p>`}
  <p class="soft small">${t("packages.how")}</p>`;
}
