// The files of a sandbox's workspace: look, upload by drop, download, delete.
import { html, useState, useEffect, useRef } from "../lib.js";
import { t } from "../i18n.js";
import { call, segments, send, target } from "../api.js";
import { usePoll } from "../data.js";
import { ago, bytes } from "../format.js";
import { ErrorBox, Icon, Loading, useAction } from "../parts/basic.js";
import { Code } from "../parts/editor.js";

const PREVIEW = 64 * 1024; // bytes of a text that are shown
const PICTURE = /\.(png|jpe?g|gif|webp|bmp|avif)$/i;
const BINARY = /\.(zip|gz|tar|xlsx|docx|pptx|pdf|parquet|npy|npz|pkl|so|bin|pt|mp4|mp3|wav|ttf|woff2?)$/i;
const LANGUAGE = { py: "python", js: "javascript", mjs: "javascript", ts: "typescript", json: "json", ipynb: "json", sh: "bash" };
const NAMES = 1000; // entries that are listed

export function Files({ id, open, mayRun }) {
  const path = `v1/sandboxes/${encodeURIComponent(id)}/files`;
  const [folder, setFolder] = useState("");
  const [chosen, setChosen] = useState(null);
  const [over, setOver] = useState(false);
  const list = usePoll(open ? target(path, { path: folder, limit: 200 }) : "", 5000);
  const input = useRef(null);
  const { busy, error, act } = useAction();
  if (!open) return html`<p class="soft">${t("box.over")} ${t("files.artifacts")}</p>`;
  const upload = (files) => act(async () => {
    for (const file of files) await send("PUT", `${path}/${segments(`${folder ? `${folder}/` : ""}${file.name}`)}`, { raw: file, headers: { "Content-Type": "application/octet-stream" } });
    list.reload();
  });
  const remove = (entry) => confirm(t("files.sure", { name: entry.path })) && act(async () => { await call("DELETE", `${path}/${segments(entry.path)}`, { query: { recursive: entry.type === "dir" ? "true" : "" } }); setChosen(null); list.reload(); });
  const parts = folder ? folder.split("/") : [];
  const items = ((list.data && list.data.items) || []).slice(0, NAMES).sort((a, b) => (b.type === "dir") - (a.type === "dir") || a.path.localeCompare(b.path));
  return html`<div class=${`files two ${over ? "over" : ""}`} onDragOver=${(event) => { if (mayRun) { event.preventDefault(); setOver(true); } }} onDragLeave=${() => setOver(false)}
      onDrop=${(event) => { event.preventDefault(); setOver(false); if (mayRun) upload([...event.dataTransfer.files]); }}>
    <section>
      <div class="bar-head">
        <nav class="path" aria-label=${t("files.path")}><button type="button" class="quiet" onClick=${() => setFolder("")}>workspace</button>${parts.map((part, i) => html`<span key=${i}>/<button type="button" class="quiet" onClick=${() => setFolder(parts.slice(0, i + 1).join("/"))}>${part}</button></span>`)}</nav>
        <span class="grow"></span>
        ${mayRun && html`<button type="button" disabled=${busy} onClick=${() => input.current.click()}><${Icon} name="upload" />${t("files.upload")}</button>
          <input ref=${input} type="file" multiple hidden aria-label=${t("files.upload")} onChange=${(event) => { upload([...event.target.files]); event.target.value = ""; }} />`}
      </div>
      <${ErrorBox} error=${error || list.error} />
      ${!list.data && !list.error && html`<${Loading} />`}
      ${list.data && items.length === 0 && html`<p class="soft">${t("files.empty")}</p>`}
      <ul class="tree">${items.map((entry) => {
    const name = entry.path.split("/").pop();
    return html`<li key=${entry.path}><button type="button" data-row class="quiet entry" aria-pressed=${chosen === entry.path} onClick=${() => (entry.type === "dir" ? (setFolder(entry.path), setChosen(null)) : setChosen(entry.path))}>
          <${Icon} name=${entry.type === "dir" ? "folder" : "file"} /><span class="name">${name}</span><span class="soft small">${entry.type === "dir" ? "" : bytes(entry.size)}</span><span class="soft small when">${ago(entry.modified_at)}</span></button>
          ${mayRun && html`<button type="button" class="quiet small" aria-label=${t("files.delete", { name })} title=${t("files.delete", { name })} onClick=${() => remove(entry)}><${Icon} name="trash" /></button>`}</li>`;
  })}</ul>
      ${list.data && list.data.next_cursor && html`<p class="soft small">${t("files.more")}</p>`}
    </section>
    <section>${chosen ? html`<${Preview} key=${chosen} base=${path} name=${chosen} />` : html`<p class="soft">${t(mayRun ? "files.hint" : "files.choose")}</p>`}</section>
  </div>`;
}

function Preview({ base, name }) {
  const url = `${base}/${segments(name)}`;
  const [text, setText] = useState(null);
  const [error, setError] = useState(null);
  const picture = PICTURE.test(name);
  useEffect(() => {
    if (picture || BINARY.test(name)) return undefined;
    const control = new AbortController();
    send("GET", url, { headers: { Range: `bytes=0-${PREVIEW - 1}` }, signal: control.signal })
      .then(async (answer) => setText({ whole: answer.status === 200, text: await answer.text() }))
      .catch((problem) => { if (!control.signal.aborted) { if (problem.status === 416) setText({ whole: true, text: "" }); else setError(problem); } });
    return () => control.abort();
  }, [url]);
  const kind = name.split(".").pop().toLowerCase();
  return html`<div class="bar-head"><h2>${name}</h2><span class="grow"></span><a class="button" href=${url} download=${name.split("/").pop()}><${Icon} name="download" />${t("download")}</a></div>
    <${ErrorBox} error=${error} />
    ${picture && html`<figure class="picture"><img src=${url} alt=${name} /></figure>`}
    ${text && (text.text.includes("\u0000") ? html`<p class="soft">${t("files.binary")}</p>` : kind === "csv" || kind === "tsv" ? html`<${Sheet} text=${text.text} separator=${kind === "tsv" ? "\t" : ","} />` : html`<${Code} code=${text.text} language=${LANGUAGE[kind] || ""} />`)}
    ${text && !text.whole && html`<p class="soft small">${t("files.part")}</p>`}
    ${!picture && BINARY.test(name) && html`<p class="soft">${t("files.binary")}</p>`}`;
}

const ROWS = 200;

// cells reads a line of a table: fields with quotes, two quotes for one.
function cells(text, separator) {
  const rows = [[""]];
  let quoted = false;
  for (let i = 0; i < text.length && rows.length <= ROWS + 1; i += 1) {
    const c = text[i];
    const row = rows[rows.length - 1];
    if (quoted) {
      if (c === '"' && text[i + 1] === '"') { row[row.length - 1] += '"'; i += 1; } else if (c === '"') quoted = false; else row[row.length - 1] += c;
    } else if (c === '"' && row[row.length - 1] === "") quoted = true;
    else if (c === separator) row.push("");
    else if (c === "\n") rows.push([""]);
    else if (c !== "\r") row[row.length - 1] += c;
  }
  return rows.filter((row) => row.length > 1 || row[0] !== "").map((row) => row.slice(0, 100));
}

function Sheet({ text, separator }) {
  const [head, ...body] = cells(text, separator);
  return head ? html`<figure class="table"><div class="scroll" tabindex="0" role="region" aria-label=${t("output.table")}><table><thead><tr>${head.map((one) => html`<${one ? "th" : "td"} scope=${one ? "col" : undefined}>${one}<//>`)}</tr></thead><tbody>${body.slice(0, ROWS).map((row) => html`<tr>${row.map((one) => html`<td class=${/^-?[\d.]+$/.test(one) ? "number" : ""}>${one}</td>`)}</tr>`)}</tbody></table></div></figure>` : null;
}
