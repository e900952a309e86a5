// What code has shown: text with its colours, pictures, tables, pages, files. All of it comes from code that nobody trusts.
import { html, useState, useEffect, useLayoutEffect, useRef, useMemo } from "../lib.js";
import { t } from "../i18n.js";
import { ansi } from "../ansi.js";
import { call } from "../api.js";
import { INTERRUPT, bytes, forPeople } from "../format.js";
import { ErrorBox, Icon, useAction } from "./basic.js";
import { Code } from "./editor.js";

const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/bmp", "image/avif"];
const NEAR = 40; // pixels from the end of a box that count as its end, which may have moved on
const ROWS = 500; // of a table that are shown

const isPicture = (type) => PICTURES.includes((type || "").split(";")[0]);

// tableOf reads the one table of a piece of HTML as text, or returns null if there is more to it. Nothing of it runs or is loaded; styles are
// left out first, since the page's policy would complain of them; no search goes beyond the next one, so that many without an end take no longer.
function tableOf(source) {
  if (!source.includes("<table")) return null;
  const doc = new DOMParser().parseFromString(source.replace(/<style(?:(?!<style)[\s\S])*?<\/style>/gi, "").replace(/\sstyle=(?:"[^"]*"|'[^']*')/gi, ""), "text/html");
  const tables = doc.querySelectorAll("table");
  if (tables.length !== 1 || doc.querySelector("script,iframe,img,svg,form,object,embed")) return null;
  const cells = (row) => [...row.cells].map((cell) => ({ text: cell.textContent.trim(), head: cell.tagName === "TH", span: Math.min(cell.colSpan, 100) }));
  const head = [...(tables[0].tHead ? tables[0].tHead.rows : [])].map(cells);
  const body = [...tables[0].tBodies].flatMap((part) => [...part.rows]).map(cells);
  if (!body.length || body.some((row) => row.length > 200)) return null;
  const rest = [...doc.body.children].flatMap((node) => (node.tagName === "DIV" ? [...node.children] : [node])).filter((node) => !["TABLE", "STYLE"].includes(node.tagName)).map((node) => node.textContent.trim());
  return { head, body, note: rest.join(" ") };
}

const numeric = (text) => /^[-+]?[\d.,]+(e[+-]?\d+)?%?$|^(NaN|inf)$/.test(text);

function Table({ table }) {
  const shown = table.body.slice(0, ROWS);
  const numbers = new Set(); // columns that are numbers from top to bottom, whose heads stand above them
  for (const row of shown.slice(0, 20)) row.forEach((one, i) => { if (!one.head && numeric(one.text)) numbers.add(i); });
  for (const row of shown.slice(0, 20)) row.forEach((one, i) => { if (one.text && !numeric(one.text)) numbers.delete(i); });
  const cell = (one) => html`<${one.head ? "th" : "td"} scope=${one.head ? "row" : undefined} colspan=${one.span > 1 ? one.span : undefined} class=${numeric(one.text) ? "number" : ""}>${one.text}<//>`;
  return html`<figure class="table">
    <div class="scroll" tabindex="0" role="region" aria-label=${t("output.table")}><table>
      <thead>${table.head.map((row) => html`<tr>${row.map((one, i) => html`<${one.text ? "th" : "td"} scope=${one.text ? "col" : undefined} colspan=${one.span > 1 ? one.span : undefined} class=${numbers.has(i) ? "number" : ""}>${one.text}<//>`)}</tr>`)}</thead>
      <tbody>${shown.map((row) => html`<tr>${row.map(cell)}</tr>`)}</tbody>
    </table></div>
    ${(table.note || table.body.length > ROWS) && html`<figcaption class="soft small">${table.body.length > ROWS ? t("output.rows", { n: ROWS, all: table.body.length }) : ""} ${table.note}</figcaption>`}
  </figure>`;
}

// Page shows HTML in a frame with an origin of its own, which reaches neither this page nor any network.
function Page({ source }) {
  const frame = useRef(null);
  const [height, setHeight] = useState(60);
  useEffect(() => {
    const heard = (event) => {
      if (!frame.current || event.source !== frame.current.contentWindow || !event.data || typeof event.data.height !== "number") return;
      setHeight(Math.max(24, Math.min(900, Math.ceil(event.data.height) + 2)));
    };
    addEventListener("message", heard);
    return () => removeEventListener("message", heard);
  }, []);
  const show = () => {
    const style = getComputedStyle(frame.current);
    frame.current.contentWindow.postMessage({ html: source, color: style.color, background: style.backgroundColor, font: "system-ui, sans-serif", scheme: getComputedStyle(document.documentElement).colorScheme }, "*");
  };
  return html`<iframe class="page" ref=${frame} sandbox="allow-scripts" src="ui/frame.html" title=${t("output.page")} style=${{ height: `${height}px` }} onLoad=${show}></iframe>`;
}

// Picture is a picture that opens in a tab of its own, as one of the types of PICTURES: a document of such a type runs nothing.
function Picture({ type, value, alt }) {
  const open = (event) => {
    if (value.url) return;
    event.preventDefault(); // browsers open no data: address in a tab
    const address = URL.createObjectURL(new Blob([Uint8Array.from(atob(value.data.replace(/\s/g, "")), (c) => c.charCodeAt(0))], { type }));
    window.open(address, "_blank");
    setTimeout(() => URL.revokeObjectURL(address), 60000);
  };
  return html`<figure class="picture"><a href=${value.url || "#"} target="_blank" rel="noopener" title=${t("output.open")} onClick=${open}><img alt=${alt} src=${value.url || `data:${type};base64,${value.data}`} /></a></figure>`;
}

// Rich shows one value in the best of its forms.
function Rich({ rich }) {
  const picture = PICTURES.find((mime) => rich[mime]);
  const text = rich["text/plain"] ? rich["text/plain"].data || "" : "";
  const source = rich["text/html"] ? rich["text/html"].data || "" : "";
  const table = useMemo(() => tableOf(source), [source]);
  if (picture) return html`<${Picture} type=${picture} value=${rich[picture]} alt=${text || t("output.picture")} />`;
  if (rich["image/svg+xml"]) {
    const svg = rich["image/svg+xml"];
    return html`<figure class="picture"><img alt=${text || t("output.picture")} src=${svg.url || (svg.data.trimStart().startsWith("<") ? `data:image/svg+xml,${encodeURIComponent(svg.data)}` : `data:image/svg+xml;base64,${svg.data}`)} /></figure>`;
  }
  if (table) return html`<${Table} table=${table} />`;
  if (source) return html`<${Page} key=${source} source=${source} />`;
  const other = Object.keys(rich).find((mime) => mime !== "text/plain");
  if (rich["application/json"]) return html`<${Code} code=${pretty(rich["application/json"].data || "")} language="json" />`;
  if (rich["text/markdown"]) return html`<pre class="text" tabindex="0">${rich["text/markdown"].data}</pre>`;
  if (rich["text/plain"]) return html`<pre class="text value" tabindex="0">${ansi(text)}</pre>`;
  const link = rich[other] && rich[other].url;
  return html`<p class="soft">${t("output.other", { mime: other })} ${link && html`<a href=${link} rel="noopener" download>${t("download")}</a>`}</p>`;
}

// pretty indents JSON, which comes as base64 like all that is not of a type text/….
function pretty(data) {
  const text = new TextDecoder().decode(Uint8Array.from(atob(data), (c) => c.charCodeAt(0)));
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

const Text = ({ item }) => html`<span class=${item.stream}>${useMemo(() => ansi(item.text), [item.text])}</span>`;

// useTail keeps the end of a box in sight while it grows, unless the reader has scrolled up. It returns what the box needs.
export function useTail(live) {
  const ref = useRef(null);
  const tail = useRef({ follows: true, top: 0, live });
  const onScroll = () => {
    const box = ref.current;
    const at = tail.current;
    if (!box) return; // the event came after its box had gone
    if (box.scrollTop < at.top) at.follows = false;
    if (box.scrollTop + box.clientHeight >= box.scrollHeight - NEAR) at.follows = true;
    at.top = box.scrollTop;
  };
  useLayoutEffect(() => {
    const box = ref.current;
    const at = tail.current;
    if (box && box.scrollTop < at.top) onScroll(); // of which the browser has yet to tell
    if (box && (live || at.live) && at.follows) box.scrollTop = box.scrollHeight;
    if (box) {
      at.top = box.scrollTop;
      box.style.overflowAnchor = at.follows ? "none" : ""; // what goes at the top moves those who read, and no others
    }
    at.live = live; // what came together with the end is followed, too
  });
  return { ref, onScroll };
}

const Block = ({ texts, live }) => html`<pre class="text" ...${useTail(live)} tabindex="0">${texts.map((item) => html`<${Text} key=${item.id} item=${item} />`)}</pre>`;

// Whole leads to all the output of which a page shows the end.
const Whole = ({ whole }) => html`<p class="soft small">${t("output.cut")} ${whole.length > 0 && t("output.whole")} ${whole.map((one) => html`<a key=${one.name} class="whole" href=${one.url || "#"} rel="noopener" download=${one.name}
  onClick=${(event) => { if (!one.url) event.currentTarget.href = URL.createObjectURL(new Blob([one.text], { type: "text/plain" })); }}>${one.name}</a> `)}</p>`;

// Output shows items as follow.js makes them. Text that follows on text is one block. While it is live, and if it is `cut`, the end of the last one
// stays in sight; `whole` are links to all of it.
export function Output({ items, cut, live, whole = [] }) {
  const groups = [];
  for (const item of items) {
    const last = groups[groups.length - 1];
    if (item.stream && last && last.texts) last.texts.push(item);
    else groups.push(item.stream ? { id: `after-${last ? last.id : ""}`, texts: [item] } : item); // the name stays while text goes at the top
  }
  return html`<div class="output">
    ${groups.map((one, i) => (one.texts ? html`<${Block} key=${one.id} texts=${one.texts} live=${(live || cut) && i === groups.length - 1} />` : html`<${Rich} key=${one.id} rich=${one.rich} />`))}
    ${cut && html`<${Whole} whole=${whole} />`}
  </div>`;
}

// asHere names what the dashboard has, in a note of the farm: the tab of a sandbox in place of its route, and neither a route of processes nor auto_install.
const asHere = (note) => note.replace(/POST \/v1\/sandboxes\/\w+\/packages/, "Packages of the sandbox").replace(", or as a process with input (POST …/processes with stdin)", "").replace(", or run with auto_install", "");

// Outcome is what a result says beside its output and its files: an exception, what the caller should know, and what became of packages. Children
// follow the exception. stopped: the job was canceled; late: it was stopped after its timeout, which its error says.
export const Outcome = ({ result, stopped, late, children }) => html`${!(late && result.error && result.error.name === INTERRUPT) && html`<${Traceback} error=${result.error} stopped=${stopped} />`}
  ${children}
  ${(result.notes || []).map((note) => html`<p class="warning">${asHere(note)}</p>`)}
  <${Installed} packages=${result.packages || result.installed || []} />`;

// Traceback shows an exception of the code. That of code which was stopped on purpose is no news.
function Traceback({ error, stopped }) {
  if (error ? error.name === INTERRUPT : stopped) return html`<p class="soft">${t("output.stopped")}</p>`;
  return error && html`<div class="exception">
    <strong>${error.name}${error.value ? `: ${forPeople(error.value)}` : ""}</strong>
    ${error.traceback && error.traceback.length > 0 && html`<details><summary>${t("output.traceback")}</summary><pre class="text" tabindex="0">${error.traceback.join("\n")}</pre></details>`}
  </div>`;
}

// Installed lists packages that a job installed, or could not.
const Installed = ({ packages }) => packages.length > 0 && html`<h3>${t("job.installed")}</h3><ul class="plain">
  ${packages.map((one) => html`<li key=${one.name}><span class=${`badge ${one.status === "failed" ? "bad" : "good"}`}>${one.status}</span> <code>${one.name} ${one.version || ""}</code> <span class="soft small">${forPeople(one.message || "")}</span></li>`)}
</ul>`;

// useRemoval is for a page whose artifacts can be deleted: `left` are those of some that are not yet, `remove` deletes one when the user has agreed.
export function useRemoval() {
  const [gone, setGone] = useState([]);
  const { error, act } = useAction();
  const remove = (one) => confirm(t("artifacts.sure", { name: one.path })) && act(async () => {
    await call("DELETE", `v1/artifacts/${one.id}`);
    setGone((old) => [...old, one.id]);
  });
  return { left: (all) => all.filter((one) => !gone.includes(one.id)), remove, problem: html`<${ErrorBox} error=${error} />` };
}

// Artifacts are files to download, pictures as pictures. onRemove deletes one, where that is offered.
export const Artifacts = ({ artifacts, onRemove }) => artifacts.length > 0 && html`<ul class="artifacts">
  ${artifacts.map((one) => html`<li key=${one.id}>
    <a href=${one.url} rel="noopener" target=${isPicture(one.content_type) ? "_blank" : undefined} download=${isPicture(one.content_type) ? undefined : one.name} title=${one.path}>
      ${isPicture(one.content_type) ? html`<img loading="lazy" alt="" src=${one.url} />` : html`<span class="kind"><${Icon} name="file" />${(one.name.match(/\.(\w{1,5})$/) || ["", ""])[1]}</span>`}
      <span class="name">${one.path}</span><span class="soft small">${bytes(one.size)}</span>
    </a>
    ${onRemove && html`<button type="button" class="quiet small" aria-label=${t("files.delete", { name: one.path })} title=${t("files.delete", { name: one.path })} onClick=${() => onRemove(one)}><${Icon} name="trash" /></button>`}
  </li>`)}
</ul>`;

export { isPicture };
