// A look into a file: text with colours, tables, pictures, PDF, the head of a Parquet file. Nothing of it runs with the page's rights.
import { html, useState, useEffect } from "../lib.js";
import { t } from "../i18n.js";
import { segments, send } from "../api.js";
import { bytes, count } from "../format.js";
import { ErrorBox, Icon, Loading } from "../parts/basic.js";
import { Code } from "../parts/editor.js";

const PREVIEW = 64 * 1024; // bytes of a text that are shown
const WHOLE = 16 * 1024 * 1024; // bytes of a PDF or an SVG that is shown, which takes all of it
const ROWS = 200; // of a table that are shown
const COLUMNS = 100;
const LANGUAGE = { py: "python", js: "javascript", mjs: "javascript", ts: "typescript", json: "json", ipynb: "json", sh: "bash" };

// KINDS are the endings of names of what is shown in another way than as text.
const KINDS = {
  picture: /\.(png|jpe?g|gif|webp|bmp|avif)$/i, svg: /\.svg$/i, pdf: /\.pdf$/i, parquet: /\.(parquet|pq)$/i, sheet: /\.(csv|tsv)$/i,
  binary: /\.(zip|gz|tar|xlsx|docx|pptx|npy|npz|pkl|so|bin|pt|mp4|mp3|wav|ttf|woff2?)$/i,
};

const kindOf = (name) => Object.keys(KINDS).find((kind) => KINDS[kind].test(name)) || "text";

// useRead calls read with a signal when the page comes; {data, error}.
function useRead(read, url) {
  const [state, setState] = useState({ data: null, error: null });
  useEffect(() => {
    const control = new AbortController();
    setState({ data: null, error: null });
    read(control.signal).then((data) => { if (!control.signal.aborted) setState({ data, error: null }); }, (error) => { if (!control.signal.aborted) setState({ data: null, error }); });
    return () => control.abort();
  }, [url]);
  return state;
}

// Preview shows a file of `size` bytes below the address of a sandbox's files.
export function Preview({ base, name, size }) {
  const url = `${base}/${segments(name)}`;
  const kind = kindOf(name);
  const large = (kind === "pdf" || kind === "svg") && size > WHOLE;
  const View = large ? Nothing : { picture: Picture, svg: Vector, pdf: Pdf, parquet: Parquet, binary: Nothing }[kind] || Text;
  return html`<div class="bar-head"><h2>${name}</h2><span class="grow"></span><a class="button" href=${url} download=${name.split("/").pop()}><${Icon} name="download" />${t("download")}</a></div>
    <${View} url=${url} name=${name} size=${size} />`;
}

const Nothing = () => html`<p class="soft">${t("files.binary")}</p>`;

const Picture = ({ url, name }) => html`<figure class="picture"><img src=${url} alt=${name} /></figure>`;

// blobOf is a file with a type that is ours and not the file's.
const blobOf = async (url, type, signal) => new Blob([await (await send("GET", url, { signal })).arrayBuffer()], { type });

// dataOf is a blob as a data: address.
const dataOf = (blob) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result);
  reader.onerror = () => failed(reader.error);
  reader.readAsDataURL(blob);
});

// Vector shows an SVG as a picture, in which no script runs and nothing is loaded. Its address has no origin, unlike an object's: pasted into the browser's own
// address bar, that would be a page of the farm.
function Vector({ url, name }) {
  const { data, error } = useRead(async (signal) => dataOf(await blobOf(url, "image/svg+xml", signal)), url);
  return html`<${ErrorBox} error=${error} />${data && html`<figure class="picture"><img src=${data} alt=${name} /></figure>`}`;
}

// Pdf shows a PDF by the browser's viewer.
function Pdf({ url, name }) {
  const { data, error } = useRead(async (signal) => URL.createObjectURL(await blobOf(url, "application/pdf", signal)), url);
  useEffect(() => () => { if (data) URL.revokeObjectURL(data); }, [data]);
  if (navigator.pdfViewerEnabled === false) return html`<${Nothing} />`;
  return html`<${ErrorBox} error=${error} />${!data && !error && html`<${Loading} />`}${data && html`<iframe class="pdf" src=${`${data}#navpanes=0&view=FitH`} title=${name}></iframe>`}`;
}

function Text({ url, name, size }) {
  const { data, error } = useRead(async (signal) => {
    try {
      const answer = await send("GET", url, { headers: { Range: `bytes=0-${PREVIEW - 1}` }, signal });
      return { whole: answer.status === 200 || size <= PREVIEW, text: await answer.text() };
    } catch (problem) {
      if (problem.status === 416) return { whole: true, text: "" }; // an empty file has no byte to ask for
      throw problem;
    }
  }, url);
  if (!data) return error ? html`<${ErrorBox} error=${error} />` : html`<${Loading} />`;
  if (data.text.includes("\u0000")) return html`<${Nothing} />`;
  const ending = name.split(".").pop().toLowerCase();
  return html`${kindOf(name) === "sheet" ? html`<${Sheet} rows=${cells(data.text, ending === "tsv" ? "\t" : ",")} />` : html`<${Code} code=${data.text} language=${LANGUAGE[ending] || ""} />`}
    ${!data.whole && html`<p class="soft small">${t("files.part")}</p>`}`;
}

// Parquet shows the first rows. It reads the end of the file, which says where what is, and the parts that have these rows.
function Parquet({ url, size }) {
  const { data, error } = useRead(async (signal) => {
    const { parquetMetadataAsync, parquetRead, parquetSchema } = await import("../parts/parquet.js");
    const file = { byteLength: size, slice: async (from, to = size) => (await send("GET", url, { headers: { Range: `bytes=${from}-${to - 1}` }, signal })).arrayBuffer() };
    const metadata = await parquetMetadataAsync(file);
    const all = Number(metadata.num_rows);
    const names = parquetSchema(metadata).children.map((one) => one.element.name).slice(0, COLUMNS);
    let rows = [];
    await parquetRead({ file, metadata, columns: names, rowStart: 0, rowEnd: Math.min(all, ROWS), onComplete: (read) => { rows = read; } });
    return { rows: [names, ...rows.map((row) => [...row].map(shown))], all };
  }, url);
  if (!data) return error ? html`<${ErrorBox} error=${error} title=${t("files.parquet")} />` : html`<${Loading} />`;
  return html`<${Sheet} rows=${data.rows} /><p class="soft small">${t("files.rows", { n: count(Math.min(ROWS, data.all)), all: count(data.all) })} · ${bytes(size)}</p>`;
}

// shown is a value of a Parquet file as text.
function shown(value) {
  if (value === null || value === undefined) return "";
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? "" : value.toISOString().replace("T", " ").replace(/(\.000)?Z$/, "");
  if (value instanceof Uint8Array) return `${value.length} B`;
  if (typeof value === "object") return JSON.stringify(value, (_, one) => (typeof one === "bigint" ? String(one) : one)).slice(0, 200);
  return String(value).slice(0, 1000);
}

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
  return rows.filter((row) => row.length > 1 || row[0] !== "").map((row) => row.slice(0, COLUMNS));
}

// Sheet is a table whose first row has the names of its columns. Numbers stand on the right, with their names.
function Sheet({ rows: [head, ...body] }) {
  if (!head) return null;
  const number = head.map((_, i) => body.length > 0 && body.slice(0, 20).every((row) => !row[i] || /^-?[\d.]+(e[-+]?\d+)?$/i.test(row[i])));
  return html`<figure class="table"><div class="scroll" tabindex="0" role="region" aria-label=${t("output.table")}><table>
    <thead><tr>${head.map((one, i) => html`<${one ? "th" : "td"} scope=${one ? "col" : undefined} class=${number[i] ? "number" : ""}>${one}<//>`)}</tr></thead>
    <tbody>${body.slice(0, ROWS).map((row) => html`<tr>${row.map((one, i) => html`<td class=${number[i] ? "number" : ""}>${one}</td>`)}</tr>`)}</tbody></table></div></figure>`;
}
