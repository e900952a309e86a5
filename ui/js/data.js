// Reading from the farm as a page needs it.
import { useState, useEffect, useRef, useCallback } from "./lib.js";
import { get, target, whenReached } from "./api.js";

const GOING = ["queued", "running", "starting", "closing"];

// usePoll reads a path again and again, while the page is seen, and at once when the farm answers again. It returns {data, error, reload}. A falsy path reads nothing.
export function usePoll(path, every = 3000) {
  const [state, setState] = useState({ data: null, error: null });
  const reloads = useRef(() => {});
  useEffect(() => {
    if (!path) return undefined;
    setState({ data: null, error: null });
    const control = new AbortController();
    let timer = 0;
    let busy = false;
    const read = async () => {
      clearTimeout(timer);
      if (busy) return;
      if (document.hidden) return;
      busy = true;
      try {
        const data = await get(path, undefined, control.signal);
        setState({ data, error: null });
      } catch (error) {
        if (control.signal.aborted) return;
        setState((old) => ({ data: old.data, error }));
      } finally {
        busy = false;
      }
      if (every && !control.signal.aborted) timer = setTimeout(read, every);
    };
    reloads.current = read;
    const seen = () => { if (!document.hidden) read(); };
    document.addEventListener("visibilitychange", seen);
    const forget = whenReached((yes) => { if (yes) read(); });
    read();
    return () => {
      forget();
      control.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [path, every]);
  const reload = useCallback(() => reloads.current(), []);
  return { ...state, reload };
}

const GLANCE = 3; // entries that are read to see whether a list has changed
const WHOLE = 20000; // milliseconds after which a list is read again, whatever a glance says

// joined puts what a glance read on top of what is known of a list; null if the two do not meet, or if what is known has become long.
function joined(glance, known, limit) {
  const from = glance.items.findIndex((one) => one.id === known.items[0]?.id);
  const same = glance.items.slice(from);
  if (from < 0 || same.some((one, i) => one.id !== known.items[i]?.id) || from + known.items.length > 2 * limit) return null;
  return { ...known, items: [...glance.items, ...known.items.slice(same.length)] };
}

// useList reads the first page of a list again and again, while the page is seen. Each entry of a page costs the farm a look at a record, so it
// reads only as far as something is still going on, and the whole page after `whole` milliseconds, or if too much has changed.
export function useList(path, query, limit, every, whole = WHOLE) {
  const [state, setState] = useState({ data: null, error: null });
  const key = target(path, query);
  useEffect(() => {
    setState({ data: null, error: null });
    const control = new AbortController();
    let timer = 0;
    let busy = false;
    let last = null;
    let read = 0;
    const readAll = async () => {
      read = Date.now();
      return get(path, { ...query, limit }, control.signal);
    };
    const look = async () => {
      clearTimeout(timer);
      if (busy || document.hidden) return;
      busy = true;
      try {
        let next = null;
        if (last && last.items.length && Date.now() - read < whole) {
          const depth = Math.max(GLANCE, last.items.findLastIndex((one) => GOING.includes(one.state)) + 1);
          if (depth < limit) next = joined(await get(path, { ...query, limit: depth }, control.signal), last, limit);
        }
        next = next || await readAll();
        if (JSON.stringify(next) === JSON.stringify(last)) setState((old) => (old.error ? { data: old.data, error: null } : old));
        else {
          last = next;
          setState({ data: next, error: null });
        }
      } catch (error) {
        if (control.signal.aborted) return;
        setState((old) => ({ data: old.data, error }));
      } finally {
        busy = false;
      }
      if (every && !control.signal.aborted) timer = setTimeout(look, every);
    };
    document.addEventListener("visibilitychange", look);
    const forget = whenReached((yes) => { if (yes) look(); });
    look();
    return () => {
      forget();
      control.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, [key, limit, every, whole]);
  return state;
}

// useNow is the time, and renders again every so many milliseconds.
export function useNow(every = 1000) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden) setNow(Date.now()); }, every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}
