// Reading from the farm as a page needs it.
import { useState, useEffect, useRef, useCallback } from "./lib.js";
import { get } from "./api.js";

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

// useNow is the time, and renders again every so many milliseconds.
export function useNow(every = 1000) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden) setNow(Date.now()); }, every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}
