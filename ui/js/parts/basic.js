// Small parts that every page uses.
import { html, useState, useEffect, useRef } from "../lib.js";
import { t } from "../i18n.js";
import { INTERRUPT, trouble, wrongOf } from "../format.js";

const PATHS = {
  play: "M6 4l10 6-10 6z", list: "M3 5h14M3 10h14M3 15h14", box: "M10 2l7 4v8l-7 4-7-4V6zM3 6l7 4 7-4M10 10v8", image: "M3 4h14v12H3zM3 13l4-4 4 4 2-2 4 4M13 7.5h.01",
  farm: "M3 17V9l7-5 7 5v8zM8 17v-5h4v5", copy: "M7 7h9v9H7zM4 13V4h9", x: "M5 5l10 10M15 5L5 15", plus: "M10 4v12M4 10h12", stop: "M6 6h8v8H6z", again: "M15 6V3M15 6h-3M15.5 6.5A6.5 6.5 0 1 0 16.5 10",
  download: "M10 3v9M6 9l4 4 4-4M4 16h12", upload: "M10 13V4M6 7l4-4 4 4M4 16h12", file: "M5 2h7l3 3v13H5zM12 2v4h3", folder: "M2 5h6l2 2h8v9H2z", clock: "M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14M10 6v4l3 2", open: "M8 4H4v12h12v-4M11 3h6v6M17 3l-8 8",
  sun: "M10 6a4 4 0 1 0 0 8 4 4 0 0 0 0-8M10 1v2M10 17v2M1 10h2M17 10h2M4 4l1 1M15 15l1 1M4 16l1-1M15 5l1-1", moon: "M16 12A7 7 0 0 1 8 4a7 7 0 1 0 8 8z", out: "M12 4H4v12h8M9 10h9M15 7l3 3-3 3", book: "M3 4h5l2 1.5L12 4h5v12h-5l-2 1.5L8 16H3zM10 5.5v12", key: "M13 3a4 4 0 1 0 0 8 4 4 0 0 0 0-8M10 10l-7 7M5 15l2 2", term: "M3 4h14v12H3zM6 8l2 2-2 2M10 12h4", trash: "M4 6h12M8 6V4h4v2M6 6l1 11h6l1-11", globe: "M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14M3 10h14M10 3c-5 5-5 9 0 14M10 3c5 5 5 9 0 14",
};

const TITLE = 60; // characters of each part of a title

// useTitle names what a page shows in the title of its window, from the part to the whole.
export function useTitle(...parts) {
  const title = [...parts.filter(Boolean).map((one) => (one.length > TITLE ? `${one.slice(0, TITLE)}…` : one)), "Sandfarm"].join(" · ");
  useEffect(() => { document.title = title; }, [title]);
}

// Icon is a small picture that says nothing to screen readers.
export const Icon = ({ name }) => html`<svg class="icon" viewBox="0 0 20 20" aria-hidden="true" focusable="false"><path d=${PATHS[name]} /></svg>`;

// LOGO is the address of the farm's picture, which the page has loaded already.
export const LOGO = document.querySelector("link[rel=icon]").href;

const TONES = {
  completed: "good", ready: "good", running: "live", busy: "live", starting: "live", queued: "wait", hibernated: "wait", closing: "wait",
  failed: "bad", lost: "bad", timed_out: "bad", canceled: "dull", closed: "dull", expired: "dull", exited: "dull",
};

// Badge shows a state: a colour, and always the word. That of a job is not green if something went wrong in it.
export const Badge = ({ state, job }) => html`<span class=${`badge ${(!trouble(job) && TONES[state]) || "dull"}`}><span class="dot" aria-hidden="true"></span>${t(`state.${state}`)}</span>`;

// Trouble says what went wrong in a job that was completed. Who interrupts code expects its end.
export const Trouble = ({ job }) => trouble(job) && html`<span class=${`badge ${job.result.error && job.result.error.name === INTERRUPT ? "dull" : "bad"}`}>${trouble(job)}</span>`;

// ErrorBox shows what went wrong and what to do.
export function ErrorBox({ error, title }) {
  if (!error) return null;
  const text = error.status === 0 ? t("error.unreachable") : error.quota ? error.message.replace(error.quota.name, `“${t(`quota.${error.quota.name}`)}”`) : error.message;
  const fields = error.errors || [];
  return html`<div class="error" role="alert">
    <strong>${title || t(error.status === 0 ? "error.away" : "error.title")}</strong>
    ${!fields.some((one) => text.startsWith(one.detail)) && html`<p>${text}</p>`}
    ${fields.map((one) => html`<p class="soft">${wrongOf(one) === one.detail && html`<code>${one.pointer}</code> `}${wrongOf(one)}</p>`)}
    ${error.requestId && html`<p class="soft small">${t("error.request")} <code>${error.requestId}</code></p>`}
  </div>`;
}

export const Loading = () => html`<div class="loading" role="status"><span class="spinner" aria-hidden="true"></span>${t("loading")}</div>`;

// Empty says what could be here, and what to do about it.
export const Empty = ({ icon, title, children }) => html`<div class="empty"><${Icon} name=${icon} /><h2>${title}</h2><p>${children}</p></div>`;

// Nowhere is in the place of a page that does not exist.
export function Nowhere() {
  useTitle(t("nowhere.title"));
  return html`<div class="empty"><h1>${t("nowhere.title")}</h1><p><a href="#/">${t("nowhere")}</a></p></div>`;
}

// Copy copies a text. A wide one shows its label.
export function Copy({ text, label, wide }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return undefined;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async (event) => {
    const button = event.currentTarget;
    try {
      await navigator.clipboard.writeText(text);
    } catch { // no permission, or no https
      const area = document.createElement("textarea");
      area.value = text;
      button.parentNode.append(area); // nothing outside an open dialog can be selected
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    setDone(true);
  };
  if (wide) return html`<button type="button" class="primary copy" onClick=${copy}><${Icon} name="copy" />${done ? t("copied") : label}</button>`;
  return html`<button type="button" class="quiet small" onClick=${copy} title=${t("copy")} aria-label=${`${t("copy")} ${label || ""}`}><${Icon} name="copy" />${done ? t("copied") : label ? "" : t("copy")}</button>`;
}

// Stop is a button that takes the place of another one. It ignores the second click of a double click on that one.
export function Stop({ onClick, disabled }) {
  return html`<button type="button" class="danger" disabled=${disabled} onClick=${(event) => event.detail > 1 || onClick()}><${Icon} name="stop" />${t("play.stop")}</button>`;
}

// Id is an identifier that can be copied.
export const Id = ({ id, href }) => html`<span class="id">${href ? html`<a href=${href}><code>${id}</code></a>` : html`<code>${id}</code>`}<${Copy} text=${id} label=${id} /></span>`;

// Dialog is a modal dialog; onClose is called however it is closed.
export function Dialog({ title, onClose, children }) {
  const node = useRef(null);
  useEffect(() => { node.current.showModal(); }, []);
  return html`<dialog ref=${node} onClose=${onClose} aria-label=${title} onClick=${(event) => { if (event.target === node.current) node.current.close(); }}>
    <div class="dialog">
      <header><h2>${title}</h2><button type="button" class="quiet" aria-label=${t("close")} onClick=${() => node.current.close()}><${Icon} name="x" /></button></header>
      ${children}
    </div>
  </dialog>`;
}

// Tabs are links that look like tabs. The current one is in sight.
export function Tabs({ tabs, current, label }) {
  const strip = useRef(null);
  useEffect(() => {
    const tab = strip.current.querySelector("[aria-current]");
    if (tab) strip.current.scrollLeft = tab.offsetLeft - strip.current.offsetLeft - (strip.current.clientWidth - tab.offsetWidth) / 2;
  }, [current]);
  return html`<nav class="tabs" aria-label=${label} ref=${strip}>
    ${tabs.map((one) => html`<a key=${one.name} href=${one.href} aria-current=${one.name === current ? "page" : undefined}>${one.title}</a>`)}
  </nav>`;
}

// Heads are the headings over the rows of a list, whose columns they share.
export const Heads = ({ of, names }) => html`<div class=${`row heads ${of}`} aria-hidden="true">${names.map((name) => html`<span key=${name}>${name}</span>`)}</div>`;

// Grid is a table: heads are its headings, each with a class, number or wrap; rows have a key and cells. If it is named, the first cells name the rows.
// On a phone each row is a card, in which a heading is before each cell.
export const Grid = ({ label, heads, rows, named }) => html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table class="grid">
  <thead><tr>${heads.map(([title, kind]) => html`<${title ? "th" : "td"} scope=${title ? "col" : undefined} class=${kind}>${title}<//>`)}</tr></thead>
  <tbody>${rows.map(([key, ...cells]) => html`<tr key=${key}>${cells.map((cell, i) => html`<${named && i === 0 ? "th" : "td"} scope=${named && i === 0 ? "row" : undefined} class=${heads[i][1]} data-head=${heads[i][0]}>${cell}<//>`)}</tr>`)}</tbody>
</table></div>`;

// Field is a labelled input, with what is wrong with its value.
export const Field = ({ label, hint, wrong, children }) => html`<label class="field"><span>${label}</span>${children}${hint && html`<small class="soft">${hint}</small>`}
  ${(wrong || []).map((one) => html`<small class="wrong" role="alert">${one}</small>`)}</label>`;

// Action is a button that does something that may fail, and shows so.
export function useAction() {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const act = async (work) => {
    setBusy(true);
    setError(null);
    try {
      return await work();
    } catch (problem) {
      setError(problem);
      return undefined;
    } finally {
      setBusy(false);
    }
  };
  return { busy, error, act, setError };
}
