// Reading from the farm as a page needs it.
import { useState, useEffect, useRef, useCallback } from "./lib.js";
import { get, target } from "./api.js";

const GOING = ["queued", "running", "starting", "closing"];

// usePoll reads a path again and again, while the page is seen. It returns {data, error, reload}. A falsy path reads nothing.
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
    read();
    return () => {
      control.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [path, every]);
  const reload = useCallback(() => reloads.current(), []);
  return { ...state, reload };
}

const GLANCE = 3; // entries by which a glance at a list tells whether it has changed
const WHOLE = 20000; // milliseconds after which a list is read again, whatever a glance says

// known is what a glance compares.
const known = (page) => JSON.stringify(page.items.slice(0, GLANCE).map((one) => [one.id, one.state]));

// useList reads the first page of a list again and again, while the page is seen. Each entry of a page costs the farm a look at a record, so it
// glances at the newest few, and reads the whole page only if they have changed, if something on it is still going on, or after a while.
export function useList(path, query, limit, every) {
  const [state, setState] = useState({ data: null, error: null });
  const key = target(path, query);
  useEffect(() => {
    setState({ data: null, error: null });
    const control = new AbortController();
    let timer = 0;
    let busy = false;
    let last = null;
    let read = 0;
    const look = async () => {
      clearTimeout(timer);
      if (busy || document.hidden) return;
      busy = true;
      try {
        let whole = !last || Date.now() - read > WHOLE || last.items.some((one) => GOING.includes(one.state));
        if (!whole) whole = known(await get(path, { ...query, limit: GLANCE }, control.signal)) !== known(last);
        if (whole) {
          last = await get(path, { ...query, limit }, control.signal);
          read = Date.now();
          setState({ data: last, error: null });
        } else setState((old) => (old.error ? { data: old.data, error: null } : old));
      } catch (error) {
        if (control.signal.aborted) return;
        setState((old) => ({ data: old.data, error }));
      } finally {
        busy = false;
      }
      if (every && !control.signal.aborted) timer = setTimeout(look, every);
    };
    document.addEventListener("visibilitychange", look);
    look();
    return () => {
      control.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, [key, limit, every]);
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
