// Follows a job: its events as they come, put together to what a reader sees.
import { useState, useEffect, useMemo, useRef } from "./lib.js";
import { get, whenReached } from "./api.js";

const BLOCK = 16384; // characters of output that are drawn as one
const WAITS = 3000; // milliseconds after which a queued job is read again, for what it waits for
const AGAIN = 2000; // milliseconds until the farm is asked again that could not be reached
const LONG = 1000; // milliseconds after which a running job is read again, for when it began
const DRAWS = 50; // milliseconds between two drawings
const KEPT = 200000; // characters of output that stay on the page
const ITEMS = 300; // blocks of output and displayed values that stay there
const SAME = 200; // characters at the end of two texts by which they are the same

export const FINAL = ["completed", "failed", "timed_out", "canceled", "lost"];
export const isFinal = (state) => FINAL.includes(state);

const empty = () => ({ items: [], artifacts: [], progress: null, state: "", cut: false, pending: false, broken: false });

// bound drops the oldest items, in place, of what is too much for a page. It reports whether it dropped any.
function bound(items) {
  let length = items.reduce((sum, one) => sum + (one.stream ? one.text.length : 0), 0);
  let cut = false;
  while (length > KEPT || items.length > ITEMS) {
    const at = length > KEPT ? items.findIndex((one) => one.stream) : 0;
    const one = items[at];
    if (one.stream) length -= one.text.length;
    if (one.stream && length === 0) { // it is all the text
      length = KEPT;
      items[at] = { ...one, text: one.text.slice(-KEPT) };
    } else items.splice(at, 1);
    cut = true;
  }
  return cut;
}

// add puts one event into what was seen before. It changes `view`, whose lists are replaced by the caller.
function add(view, name, data) {
  if (view.pending && name !== "state" && name !== "clear") {
    view.items = [];
    view.pending = false;
  }
  const last = view.items[view.items.length - 1];
  if (["stdout", "stderr", "display"].includes(name)) view.progress = null; // what it said comes before the code
  switch (name) {
    case "stdout":
    case "stderr":
      if (last && last.stream === name && last.text.length < BLOCK) view.items[view.items.length - 1] = { ...last, text: last.text + data.text };
      else view.items.push({ id: view.next = (view.next || 0) + 1, stream: name, text: data.text });
      if (bound(view.items)) view.cut = true;
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
    const forget = whenReached((yes) => { if (!isFinal(seen.state)) reached(yes); }); // a stream may be silent for long after its network is gone
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
          if (name === "state") { // is drawn before the record that follows on it
            clearTimeout(frame);
            draw();
          } else if (!frame) frame = setTimeout(draw, DRAWS);
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
      forget();
      clearTimeout(frame);
      clearTimeout(soon);
      if (source) source.close();
    };
  }, [id, opened]);
  const shown = useMemo(() => (job && job.id === id && isFinal(job.state) ? withEnd(view, job) : view), [view, job, id]);
  return { ...shown, job, error };
}

// partsOf are what has the text of a result: itself, or its commands.
const partsOf = (result) => (Array.isArray(result.results) && result.results.some((one) => one.command !== undefined) ? result.results : [result]);
const STREAMS = ["stdout", "stderr"];
const textOf = (result, name) => partsOf(result).map((one) => one[name] || "").join("");
const isTruncated = (result, name) => partsOf(result).some((one) => one.truncated && one.truncated[name]);

// withEnd is what was seen of a job with the end of its output from its result, if the farm did not send it all as events.
function withEnd(view, job) {
  const result = job.result || {};
  let { items } = view;
  for (const name of STREAMS.filter((one) => isTruncated(result, one))) {
    const seen = items.filter((one) => one.stream === name).map((one) => one.text).join("");
    const end = textOf(result, name).slice(-KEPT);
    if (seen && !end.endsWith(seen.slice(-SAME))) items = [...items.filter((one) => one.stream !== name), { id: `end-${name}`, stream: name, text: end.slice(end.indexOf("\n") + 1) }];
  }
  if (items === view.items) return view;
  bound(items);
  return { ...view, items, cut: true };
}

// shownOf is what a page shows of a job: what was seen of it, or, if it had ended before, what its result says. `cut`: it is only the end.
export function shownOf(seen, job) {
  if (seen.items.length || !isFinal(job.state)) return seen;
  const items = itemsOf(job);
  return { items, cut: bound(items) || STREAMS.some((name) => isTruncated(job.result || {}, name)) };
}

// wholeOf names where all the output of a finished job is: the artifacts that have it, or the text itself.
export function wholeOf(job, artifacts) {
  const result = (job && isFinal(job.state) && job.result) || {};
  return STREAMS.flatMap((name) => {
    const files = artifacts.filter((one) => one.path.startsWith(".output/") && one.path.endsWith(`${name}.txt`));
    if (files.length) return files.map((one) => ({ name: one.path.replace(".output/", ""), url: one.url }));
    const text = textOf(result, name);
    return text.length > KEPT && !isTruncated(result, name) ? [{ name: `${name}.txt`, text }] : [];
  });
}

// itemsOf makes of a finished job's result what its events would have made.
function itemsOf(job) {
  const result = job.result || {};
  const items = [];
  if (partsOf(result) === result.results) {
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
