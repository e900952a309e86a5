// What the programs of a sandbox use, as two small lines over time.
import { html, useState, useEffect } from "../lib.js";
import { t } from "../i18n.js";
import { usePoll } from "../data.js";
import { bytes } from "../format.js";

const EVERY = 4000; // milliseconds between samples
const KEPT = 60; // samples
const FEW = 10; // samples of which a line takes all of its width, so that one sees the first ones

// Line draws values as a line over a width of so many samples; the newest is on the right, and `top` is at least the upper end.
// One value is no line yet, which it says.
export function Line({ values, top, label, width = KEPT }) {
  if (values.length < 2) return html`<span class="line soft small">${t("use.collecting")}</span>`;
  const most = Math.max(top, ...values) || 1;
  const points = values.map((value, i) => `${((width - values.length + i) / (width - 1)) * 100},${22 - (value / most) * 20}`);
  return html`<svg class="line" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label=${label}>
    <polygon points=${`${points.join(" ")} 100,24 ${points[0].split(",")[0]},24`} /><polyline points=${points.join(" ")} />
  </svg>`;
}

// Use shows the cores and the memory that the programs of an open sandbox use. Files of the workspace are memory too, but of no program.
export function Use({ path, resources }) {
  const { data } = usePoll(`${path}/processes?all=true`, EVERY);
  const [seen, setSeen] = useState({ samples: [], at: 0, cpu: new Map() });
  useEffect(() => {
    if (!data) return;
    setSeen((old) => {
      const at = Date.now();
      const cpu = new Map((data.running || []).map((one) => [one.pid, one.cpu_seconds]));
      const used = [...cpu].reduce((sum, [pid, seconds]) => sum + Math.max(0, seconds - (old.cpu.get(pid) ?? seconds)), 0);
      const sample = { cores: old.at ? used / ((at - old.at) / 1000) : 0, memory: (data.running || []).reduce((sum, one) => sum + one.memory_bytes, 0) };
      return { samples: [...(old.samples.length === 1 ? [{ ...old.samples[0], cores: sample.cores }] : old.samples), sample].slice(-KEPT), at, cpu };
    });
  }, [data]);
  const last = seen.samples[seen.samples.length - 1];
  if (!last) return null;
  const width = Math.max(FEW, seen.samples.length);
  const share = Math.round((last.cores / resources.cpus) * 100);
  const cores = t("use.cores", { n: seen.samples.length > 1 ? last.cores.toFixed(1) : "…", all: resources.cpus });
  const memory = t("use.memory", { n: bytes(last.memory), all: bytes(resources.memory_mb * 1048576) });
  return html`<div class="use">
    <span title=${`${share} %`}><${Line} values=${seen.samples.map((one) => one.cores)} top=${resources.cpus} label=${cores} width=${width} /><span class="soft small">${cores}</span></span>
    <span><${Line} values=${seen.samples.map((one) => one.memory)} top=${resources.memory_mb * 1048576 / 4} label=${memory} width=${width} /><span class="soft small">${memory}</span></span>
  </div>`;
}
