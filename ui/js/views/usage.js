// What the tenant of the key uses, now and on the last days, and what it may use.
import { html } from "../lib.js";
import { t } from "../i18n.js";
import { usePoll } from "../data.js";
import { bytes, count, span } from "../format.js";
import { ErrorBox, Grid, Loading, useTitle } from "../parts/basic.js";

// UNITS say how the amounts of a quota are written, where they are no plain numbers.
const UNITS = { max_memory_mb: (mb) => bytes(mb * 1048576), max_stored_mb: (mb) => bytes(mb * 1048576) };

// Amount is what is used of a quota, and its limit. Requests are counted only if they have one.
export function Amount({ quota }) {
  if (quota.name === "requests_per_minute" && quota.limit === null) return html`<span class="soft small">${t("farm.unlimited")}</span>`;
  const amount = UNITS[quota.name] || count;
  return html`${amount(quota.used ?? 0)} <span class="soft small">${quota.limit === null ? t("farm.unlimited") : t("farm.limit", { n: amount(quota.limit) })}</span>`;
}

const DAYS = [["cpu_seconds", span], ["memory_gb_seconds", count], ["gpu_seconds", span], ["sandbox_seconds", span], ["stored_gb_seconds", count]];

export function UsagePage() {
  const { data, error } = usePoll("v1/usage", 15000);
  useTitle(t("nav.usage"));
  if (!data) return error ? html`<${ErrorBox} error=${error} />` : html`<${Loading} />`;
  return html`<div class="farm-page">
    <header class="bar-head"><h1>${t("nav.usage")}</h1><span class="soft">${data.tenant}</span></header>
    <${ErrorBox} error=${error} />
    <section class="narrow"><h2>${t("usage.quotas")}</h2><${Grid} label=${t("usage.quotas")} named heads=${[[t("usage.quota")], [t("usage.used"), "number"]]} rows=${data.quotas.map((one) => [one.name, t(`quota.${one.name}`), html`<${Amount} quota=${one} />`])} /></section>
    <section><h2>${t("usage.days")}</h2>${data.days.length === 0 ? html`<p class="soft">${t("usage.none")}</p>` : html`<${Grid} label=${t("usage.days")} named heads=${[[t("usage.day")], ...DAYS.map(([name]) => [t(`usage.${name}`), "number"])]}
      rows=${[...data.days].reverse().map((one) => [one.day, one.day, ...DAYS.map(([name, write]) => write(Math.round(one[name])))])} />`}</section>
  </div>`;
}
