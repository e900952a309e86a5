// The files of a sandbox's workspace: upload by drop, download, also all of them as a zip, delete. preview.js looks into one.
import { html, useState, useRef } from "../lib.js";
import { t } from "../i18n.js";
import { call, segments, send, target } from "../api.js";
import { usePoll } from "../data.js";
import { ago, bytes } from "../format.js";
import { ErrorBox, Icon, Loading, useAction } from "../parts/basic.js";
import { Preview } from "./preview.js";

const NAMES = 1000; // entries that are listed

// placeHere is the folder, and the file that is looked at, in the address, which a reload and a link keep.
function placeHere() {
  const query = new URLSearchParams(location.hash.split("?")[1]);
  return { folder: query.get("folder") || "", file: query.get("file") || "" };
}

export function Files({ id, open, mayRun }) {
  const path = `v1/sandboxes/${encodeURIComponent(id)}/files`;
  const { folder, file: chosen } = placeHere();
  const at = (folder, file) => target(`#/sandboxes/${encodeURIComponent(id)}/files`, { folder, file });
  const [over, setOver] = useState(false);
  const list = usePoll(open ? target(path, { path: folder, limit: 200 }) : "", 5000);
  const input = useRef(null);
  const { busy, error, act } = useAction();
  if (!open) return html`<p class="soft">${t("box.over")} ${t("files.artifacts")}</p>`;
  const upload = (files) => act(async () => {
    for (const file of files) await send("PUT", `${path}/${segments(`${folder ? `${folder}/` : ""}${file.name}`)}`, { raw: file, headers: { "Content-Type": "application/octet-stream" } });
    list.reload();
  });
  const remove = (entry) => confirm(t("files.sure", { name: entry.path })) && act(async () => { await call("DELETE", `${path}/${segments(entry.path)}`, { query: { recursive: entry.type === "dir" ? "true" : "" } }); if (chosen === entry.path) location.hash = at(folder); list.reload(); });
  const parts = folder ? folder.split("/") : [];
  const items = ((list.data && list.data.items) || []).slice(0, NAMES).sort((a, b) => (b.type === "dir") - (a.type === "dir") || a.path.localeCompare(b.path));
  return html`<div class=${`files two ${over ? "over" : ""}`} onDragOver=${(event) => { if (mayRun) { event.preventDefault(); setOver(true); } }} onDragLeave=${() => setOver(false)}
      onDrop=${(event) => { event.preventDefault(); setOver(false); if (mayRun) upload([...event.dataTransfer.files]); }}>
    <section>
      <div class="bar-head">
        <nav class="path" aria-label=${t("files.path")}><a class="button quiet" href=${at()}>workspace</a>${parts.map((part, i) => html`<span key=${i}>/<a class="button quiet" href=${at(parts.slice(0, i + 1).join("/"))}>${part}</a></span>`)}</nav>
        <span class="grow"></span>
        ${mayRun && html`<a class="button quiet" id="zip" href=${target(`v1/sandboxes/${encodeURIComponent(id)}/fs/workspace${folder ? `/${segments(folder)}` : ""}`, { zip: 1 })} download=${`${parts[parts.length - 1] || "workspace"}.zip`}><${Icon} name="download" />${t("files.zip")}</a>
          <button type="button" disabled=${busy} onClick=${() => input.current.click()}><${Icon} name="upload" />${t("files.upload")}</button>
          <input ref=${input} type="file" multiple hidden aria-label=${t("files.upload")} onChange=${(event) => { upload([...event.target.files]); event.target.value = ""; }} />`}
      </div>
      <${ErrorBox} error=${error || list.error} />
      ${!list.data && !list.error && html`<${Loading} />`}
      ${list.data && items.length === 0 && html`<p class="soft">${t("files.empty")}</p>`}
      <ul class="tree">${items.map((entry) => {
    const name = entry.path.split("/").pop();
    return html`<li key=${entry.path}><a data-row class="button quiet entry" title=${name} aria-current=${chosen === entry.path ? "true" : undefined} href=${entry.type === "dir" ? at(entry.path) : at(folder, entry.path)}>
          <${Icon} name=${entry.type === "dir" ? "folder" : "file"} /><span class="name">${name}</span><span class="soft small">${entry.type === "dir" ? "" : bytes(entry.size)}</span><span class="soft small when">${ago(entry.modified_at)}</span></a>
          ${mayRun && html`<button type="button" class="quiet small" aria-label=${t("files.delete", { name })} title=${t("files.delete", { name })} onClick=${() => remove(entry)}><${Icon} name="trash" /></button>`}</li>`;
  })}</ul>
      ${list.data && list.data.next_cursor && html`<p class="soft small">${t("files.more")}</p>`}
    </section>
    <section>${chosen ? list.data && html`<${Preview} key=${chosen} base=${path} name=${chosen} size=${(items.find((one) => one.path === chosen) || {}).size || 0} />` : html`<p class="soft">${t(mayRun ? "files.hint" : "files.choose")}</p>`}</section>
  </div>`;
}
