// How long a job runs, and where its milliseconds went.
import { html } from "../lib.js";
import { t } from "../i18n.js";
import { milliseconds, span, when } from "../format.js";
import { useNow } from "../data.js";
import { isFinal } from "../follow.js";

// Running says how long a job has run so far.
export function Running({ job }) {
  const now = useNow(1000);
  return job && job.started_at && html`<span class="soft small" role="timer">${span((now - Date.parse(job.started_at)) / 1000)}</span>`;
}

// Waits says what a queued job waits for.
export const Waits = ({ job, state }) => job && job.waiting && (!state || state === "queued") && html`<p class="soft" role="status">${t("job.waits")} ${job.waiting.message}</p>`;

export function Timeline({ job }) {
  const live = !isFinal(job.state);
  const now = useNow(live ? 500 : 3600000);
  const created = Date.parse(job.created_at);
  const started = job.started_at ? Date.parse(job.started_at) : 0;
  const queue = job.timings.queue_ms || (started ? started - created : live ? now - created : 0);
  const run = job.timings.run_ms || (started && live ? now - started : 0);
  const upload = job.timings.upload_ms;
  const total = job.finished_at ? Date.parse(job.finished_at) - created : queue + run;
  const rest = job.finished_at ? Math.max(0, total - queue - run - upload) : 0;
  const parts = [["queue", queue], ["rest", rest], ["run", run], ["upload", upload]].filter((one) => one[1] > 0);
  const sum = parts.reduce((all, one) => all + one[1], 0) || 1;
  return html`<section class="timeline" aria-label=${t("timeline.title")}>
    <div class="bar" aria-hidden="true">${parts.map(([name, ms]) => html`<span key=${name} class=${name} style=${{ flexGrow: ms / sum }}></span>`)}</div>
    <dl>
      ${parts.map(([name, ms]) => html`<div key=${name}><dt><span class=${`key ${name}`} aria-hidden="true"></span>${t(`timeline.${name}`)}</dt><dd>${milliseconds(ms)}</dd></div>`)}
      <div><dt>${t("timeline.total")}</dt><dd>${milliseconds(total)}</dd></div>
      <div><dt>${t("timeline.accepted")}</dt><dd>${when(job.created_at)}</dd></div>
      ${job.attempt > 1 && html`<div><dt>${t("timeline.attempts")}</dt><dd>${job.attempt}: ${t(["create", "run"].includes(job.kind) ? "timeline.requeued" : "timeline.takenOver")}</dd></div>`}
    </dl>
  </section>`;
}
