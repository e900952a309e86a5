// Follows a job: its events as they come, put together to what a reader sees.
import { useState, useEffect, useRef } from "./lib.js";
import { get } from "./api.js";

const BLOCK = 16384; // characters of output that are drawn as one
const WAITS = 3000; // milliseconds after which a queued job is read again, for what it waits for
const AGAIN = 2000; // milliseconds until the farm is asked again that could not be reached
const LONG = 1000; // milliseconds after which a running job is read again, for when it began
const KEPT = 96; // blocks of output that stay on the page

export const FINAL = ["completed", "failed", "timed_out", "canceled", "lost"];
export const isFinal = (state) => FINAL.includes(state);

const empty = () => ({ items: [], artifacts: [], progress: null, state: "", cut: false, pending: false, broken: false });

// add puts one event into what was seen before. It changes `view`, whose lists are replaced by the caller.
function add(view, name, data) {
  if (view.pending && name !== "state" && name !== "clear") {
    view.items = [];
    view.pending = false;
  }
  const last = view.items[view.items.length - 1];
  switch (name) {
    case "stdout":
    case "stderr":
      if (last && last.stream === name && last.text.length < BLOCK) view.items[view.items.length - 1] = { ...last, text: last.text + data.text };
      else view.items.push({ id: view.next = (view.next || 0) + 1, stream: name, text: data.text });
      if (view.items.length > KEPT) {
        view.items.splice(0, view.items.length - KEPT);
        view.cut = true;
      }
      break;
    case "display": {
      const at = view.items.findIndex((item) => item.display === data.display);
      const rich = { mime: data.mime, data: data.data, url: data.url, artifact_id: data.artifact_id };
      if (at >= 0) view.items[at] = { ...view.items[at], rich: { ...view.items[at].rich, [data.mime]: rich } };
      else view.items.push({ id: view.next = (view.next || 0) + 1, display: data.display, rich: { [data.mime]: rich } });
      break;
    }
    case "clear":
      if (data.wait) view.pending = true;
      else view.items = [];
      break;
    case "progress":
      view.progress = data;
      break;
    case "artifact":
      view.artifacts = [...view.artifacts.filter((one) => one.path !== data.path), data];
      break;
    case "state":
      view.state = data.state;
      break;
    default:
  }
}

const NAMES = ["stdout", "stderr", "display", "clear", "progress", "artifact", "state"];

// useJob follows a job to its end. It returns what was seen, and `job`, the record, which is read at the beginning and at the end.
export function useJob(id, onEnd) {
  const [view, setView] = useState(empty());
  const [job, setJob] = useState(null);
  const [error, setError] = useState(null);
  const [opened, setOpened] = useState(0);
  const ended = useRef(onEnd);
  ended.current = onEnd;
  useEffect(() => {
    if (!id) return undefined;
    let over = false;
    let frame = 0;
    const seen = empty();
    setView(empty());
    setJob(null);
    setError(null);
    const draw = () => {
      frame = 0;
      if (!over) setView({ ...seen, items: [...seen.items] });
    };
    const reached = (yes) => {
      if (seen.broken === yes) { seen.broken = !yes; draw(); }
    };
    const read = async () => {
      while (!over) {
        try {
          const record = await get(`v1/jobs/${encodeURIComponent(id)}`);
          reached(true);
          if (!over) setJob(record);
          return record;
        } catch (problem) {
          if (problem.status !== 0) {
            if (!over) setError(problem);
            return null;
          }
          reached(false);
          await new Promise((resolve) => { setTimeout(resolve, AGAIN); });
        }
      }
      return null;
    };
    let source = null;
    let soon = 0;
    const queued = () => seen.state === "" || seen.state === "queued";
    const look = () => get(`v1/jobs/${encodeURIComponent(id)}`).then((record) => { if (!over && !isFinal(seen.state)) setJob(record); }, () => {})
      .then(() => { if (!over && queued()) soon = setTimeout(look, WAITS); });
    const open = () => {
      source = new EventSource(`v1/jobs/${encodeURIComponent(id)}/events`);
      for (const name of NAMES) {
        source.addEventListener(name, (event) => {
          add(seen, name, JSON.parse(event.data));
          if (name === "state" && !queued()) clearTimeout(soon);
          if (name === "state" && seen.state === "running") soon = setTimeout(look, LONG);
          if (name === "state" && isFinal(seen.state)) {
            source.close();
            read().then((record) => { if (!over && record && ended.current) ended.current(record); });
          }
          if (!frame) frame = setTimeout(draw, 16);
        });
      }
      source.onopen = () => reached(true);
      source.onerror = () => { // the browser comes back with the id of the last event, unless the farm or a proxy refused
        if (over || isFinal(seen.state)) return;
        reached(false);
        if (source.readyState === EventSource.CLOSED) soon = setTimeout(() => setOpened((n) => n + 1), AGAIN);
      };
    };
    read().then((record) => {
      if (over || !record) return;
      open();
      if (record.state === "queued") soon = setTimeout(look, WAITS);
    });
    return () => {
      over = true;
      clearTimeout(frame);
      clearTimeout(soon);
      if (source) source.close();
    };
  }, [id, opened]);
  return { ...view, job, error };
}

// itemsOf makes of a finished job's result what its events would have made.
export function itemsOf(job) {
  const result = job.result || {};
  const items = [];
  if (Array.isArray(result.results) && result.results.some((one) => one.command !== undefined)) {
    result.results.forEach((one, i) => {
      if (one.stdout) items.push({ id: `o${i}`, stream: "stdout", text: one.stdout });
      if (one.stderr) items.push({ id: `e${i}`, stream: "stderr", text: one.stderr });
    });
    return items;
  }
  if (result.stdout) items.push({ id: "stdout", stream: "stdout", text: result.stdout });
  if (result.stderr) items.push({ id: "stderr", stream: "stderr", text: result.stderr });
  const byDisplay = new Map();
  for (const rich of result.results || []) {
    if (!byDisplay.has(rich.display)) {
      const item = { id: `d${rich.display}`, display: rich.display, rich: {} };
      byDisplay.set(rich.display, item);
      items.push(item);
    }
    byDisplay.get(rich.display).rich[rich.mime] = rich;
  }
  return items;
}
