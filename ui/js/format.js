// Numbers and times for people.
import { t, locale } from "./i18n.js";

export function bytes(n) {
  if (n === undefined || n === null) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = n;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${value < 10 && unit > 0 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function milliseconds(ms) {
  if (ms === undefined || ms === null) return "";
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return span(ms / 1000);
}

// span is a length of time in seconds.
export function span(seconds) {
  const s = Math.max(0, seconds);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 129600) return `${Math.round(s / 3600)} h`;
  return t("days", { n: Math.round(s / 86400) });
}

// ago says how long ago a time was, or how far away it is.
export function ago(time, now = Date.now()) {
  if (!time) return "";
  const seconds = (now - Date.parse(time)) / 1000;
  if (Math.abs(seconds) < 5) return t("now");
  const whole = Math.abs(seconds) < 90 ? `${Math.round(Math.abs(seconds))} s` : span(Math.abs(seconds));
  return seconds < 0 ? t("in", { span: whole }) : t("ago", { span: whole });
}

// ahead is how far away a time is, to the minute.
function ahead(time, now) {
  const minutes = Math.max(0, Math.round((Date.parse(time) - now) / 60000));
  if (minutes < 60 || minutes >= 1440) return ago(time, now);
  return t("in", { span: minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes / 60} h` });
}

// until says when an open sandbox closes, and, unless it is to be short, what happens when it is idle.
export function until(box, now, short) {
  const key = box.one_shot ? "boxes.until.run" : short || !box.idle_seconds ? "boxes.until" : box.on_idle === "hibernate" ? "boxes.until.hibernates" : "boxes.until.idle";
  return t(key, { when: ahead(box.expires_at, now), idle: span(box.idle_seconds || 0).replace(".0 ", " ") });
}

export const when = (time) => (time ? new Date(time).toLocaleString(locale(), { dateStyle: "medium", timeStyle: "medium" }) : "");
export const count = (n) => Number(n).toLocaleString(locale());
export const shortId = (id) => (id && id.length > 14 ? `${id.slice(0, 12)}…` : id || "");

// lines are those of a text that have something in them.
export const lines = (text) => text.split("\n").map((one) => one.trim()).filter(Boolean);

// words are what spaces and commas separate.
export const words = (text) => text.split(/[\s,]+/).filter(Boolean);

// firstLine is what a job is about, in one line: the name of the file that its code is from, or the first line that does more than import.
export function firstLine(request) {
  if (!request) return "";
  if (request.filename) return request.filename;
  const files = (request.files || []).map((one) => one.path).join(", ");
  const text = request.code || request.command || (request.commands || []).join("; ") || request.name || (request.packages || []).join(" ") || (request.path === "." ? files || "workspace" : request.path) || files || "";
  const told = lines(text).filter((one) => !one.startsWith("#") && !one.startsWith('"""'));
  return (told.find((one) => !/^(import|from) /.test(one)) || told[0] || text.trim()).slice(0, 200);
}

// sizes are the resources of a sandbox in words: names and values, which are empty for what it has not.
export const sizes = (of, gpu) => [
  [t("boxes.memory"), bytes(of.memory_mb * 1048576)], [t("facts.cpus"), of.cpus], [t("facts.pids"), of.pids], [t("facts.disk"), bytes(of.disk_mb * 1048576)],
  [t("facts.gpu"), gpu && gpu.count ? `${gpu.count} ${gpu.model || ""}` : ""],
];

// LABELS are the names of fields of requests in forms, by their pointers, with how many of the field's unit make one of the form's.
const LABELS = { "/resources/memory_mb": ["boxes.memoryMB", 1], "/resources/cpus": ["facts.cpus", 1], "/timeout_seconds": ["play.timeout", 1], "/ttl_seconds": ["boxes.hours", 3600], "/idle_seconds": ["boxes.idle", 60] };

// wrongOf is what is wrong with a field of a request, in the words and the unit of forms where they have the field.
export function wrongOf({ pointer, detail }) {
  const name = `${pointer.slice(1).replaceAll("/", ".")} is `;
  if (!LABELS[pointer] || !detail.startsWith(name)) return detail;
  const [label, unit] = LABELS[pointer];
  return `${t("error.field", { name: t(label) })} ${detail.slice(name.length).replace(/\d+(\.\d+)?/g, (n) => (unit === 1 ? n : Number((n / unit).toFixed(4))))}`;
}

// forPeople is a text of the farm that says where memory and the timeout of code, or of a job of another kind, are set, in the place of the fields of
// requests.
export const forPeople = (text, kind = "run") => text.replace("more memory_mb", t("jobs.moreMemory")).replace("timeout_seconds sets a longer timeout.", t(kind === "command" ? "jobs.longer" : "play.longer"));

// INTERRUPT is the exception of code that was stopped on purpose.
export const INTERRUPT = "KeyboardInterrupt";

// trouble is what became of a job that was completed, if not all went well: an exception of its code, an exit code, packages that failed; empty if
// nothing did.
export function trouble(job) {
  const result = (job && job.state === "completed" && job.result) || {};
  if (result.error) return { OutOfMemory: t("jobs.memory"), [INTERRUPT]: t("jobs.interrupted") }[result.error.name] || result.error.name;
  const exit = result.exit_code || (result.results || []).map((one) => one.exit_code).find(Boolean);
  if (exit) return `exit ${exit}`;
  return (result.packages || result.installed || []).some((one) => one.status === "failed") ? t("jobs.package") : "";
}
