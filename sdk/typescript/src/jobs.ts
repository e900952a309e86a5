import { Display } from "./display.js";
import { SandfarmError, WaitTimeout, errorOfJob } from "./errors.js";
import { List, type Page } from "./list.js";
import { isFinal, type CallOptions, type Job, type JobEvent, type StartOptions, type WaitOptions } from "./models.js";
import type { Artifact, BatchOutcome, BatchRequest, BatchResult, Created, DisplayData, GetJobsQuery, JobSpec, ProgressData, Result } from "./schema.js";
import { MAX_RECONNECTS, events } from "./stream.js";
import { MAX_WAIT, backoff, newKey, pause, type Call, type Transport } from "./transport.js";

/** Seconds of one wait, below the idle timeouts of common proxies. */
const LONG_POLL = 30;

/** Milliseconds for canceling a job whose caller has gone. */
const CLEAN_UP = 5000;

/** Functions that are called with what a job does, in order; those that return a promise are awaited. One that throws cancels the job. */
export interface Callbacks {
  onStdout?: ((text: string) => unknown) | undefined;
  onStderr?: ((text: string) => unknown) | undefined;
  /** Each displayed value when it is complete, and each of its updates. */
  onDisplay?: ((value: Display) => unknown) | undefined;
  /** The output is cleared; with `true`, when the next output comes. */
  onClear?: ((wait: boolean) => unknown) | undefined;
  onArtifact?: ((artifact: Artifact) => unknown) | undefined;
  /** Progress before the code runs, such as of an install. */
  onProgress?: ((progress: ProgressData) => unknown) | undefined;
}

/** An entry of a batch: the body of the kind's route, `kind`, and `sandbox_id` where it works in one. */
export type BatchEntry = BatchRequest["jobs"][number] & Record<string, unknown>;

/** The jobs of a farm. */
export class Jobs {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Reads a job. With `wait` the farm answers when the job is final, or after so many seconds (at most 60). */
  get(id: string, options: CallOptions & { wait?: number } = {}): Promise<Job> {
    return this.#transport.json({ route: "GET /v1/jobs/{id}", params: { id }, wait: options.wait ?? 0, signal: options.signal });
  }

  /** Lists jobs, newest first. */
  list(filter: Omit<GetJobsQuery, "cursor"> = {}, options: CallOptions = {}): List<Job> {
    return new List((cursor) => this.#transport.json<Page<Job>>({ route: "GET /v1/jobs", query: { ...filter, cursor }, signal: options.signal }));
  }

  /** The request of a job, with all of its code. */
  request(id: string, options: CallOptions = {}): Promise<JobSpec> {
    return this.#transport.json({ route: "GET /v1/jobs/{id}/request", params: { id }, signal: options.signal });
  }

  /** Cancels a job, queued or running. A final one does not change. */
  cancel(id: string, options: CallOptions = {}): Promise<Job> {
    return this.#transport.json({ route: "DELETE /v1/jobs/{id}", params: { id }, wait: -1, signal: options.signal });
  }

  /** Waits until a job is final, whatever its outcome. A farm that restarts is asked again. */
  async wait(id: string, options: CallOptions & { waitTimeout?: number | undefined } = {}): Promise<Job> {
    const deadline = Date.now() + (options.waitTimeout ?? Infinity);
    let failed = 0;
    let since = 0;
    for (;;) {
      const asked = Date.now();
      const wait = Math.max(Math.min(LONG_POLL, (deadline - asked) / 1000), 0);
      try {
        const job = await this.get(id, { wait, signal: options.signal });
        if (isFinal(job.state)) return job;
        if (Date.now() >= deadline) throw new WaitTimeout(`the job ${id} is still ${job.state}, and the time to wait is over`, job);
        since = 0;
        failed = Date.now() - asked >= Math.min(wait * 1000, 1000) ? 0 : failed + 1; // it answered at once instead of holding the request
      } catch (error) {
        if (!(error instanceof SandfarmError) || error.code !== "unavailable") throw error;
        since = since || Date.now();
        failed++;
        if (Date.now() >= deadline || (failed >= MAX_RECONNECTS && Date.now() - since >= this.#transport.outage)) throw error;
      }
      if (failed > 0) await pause(backoff(failed), options.signal);
    }
  }

  /**
   * The events of a job as they happen, from the first one or behind the id `after`, to its final state. When the connection breaks it
   * continues after the last event: nothing is lost or repeated.
   */
  async *events(id: string, options: CallOptions & { after?: string } = {}): AsyncGenerator<JobEvent, void, undefined> {
    for await (const event of events(this.#transport, { route: "GET /v1/jobs/{id}/events", params: { id }, signal: options.signal }, options.after)) {
      const known = event as JobEvent;
      yield known;
      if (known.name === "state" && isFinal(known.data.state)) return;
    }
  }

  /** Starts up to 1000 jobs with one request. Each is accepted or refused by itself; with `wait` (seconds) the farm waits for them. */
  async batch(jobs: readonly BatchEntry[], options: StartOptions & { wait?: number } = {}): Promise<BatchOutcome[]> {
    const { signal, idempotencyKey, wait = 0 } = options;
    return (await this.#transport.json<BatchResult>({ route: "POST /v1/jobs/batch", body: { jobs }, key: idempotencyKey, wait, signal, patience: this.#transport.outage })).jobs;
  }

  /** @internal Starts a job and returns it as it was accepted. */
  async start<R extends Result>(call: Call, options: StartOptions): Promise<Job<R>> {
    return accepted(await this.#transport.json<Job<R>>({ ...call, key: options.idempotencyKey, signal: options.signal, patience: this.#transport.outage }));
  }

  /** @internal Starts a job and waits until it completes. Throws JobError if it does not; a caller that gives up cancels it. */
  async perform<R extends Result>(call: Call, options: WaitOptions & Callbacks): Promise<Job<R>> {
    const { signal, waitTimeout } = options;
    const deadline = Date.now() + (waitTimeout ?? Infinity);
    const follows = Boolean(options.onStdout ?? options.onStderr ?? options.onDisplay ?? options.onClear ?? options.onArtifact ?? options.onProgress);
    const first = { ...call, key: options.idempotencyKey || newKey() };
    let job: Job | undefined;
    try {
      const wait = follows ? 0 : Math.min(MAX_WAIT, (waitTimeout ?? Infinity) / 1000);
      job = accepted(await this.#transport.json<Job>({ ...first, wait, signal, patience: Math.min(this.#transport.outage, waitTimeout ?? Infinity) }));
      if (follows) await this.#follow(job.id, options, deadline);
      if (follows || !isFinal(job.state)) {
        job = await this.wait(job.id, { signal, waitTimeout: deadline === Infinity ? undefined : Math.max(deadline - Date.now(), 0) });
      }
    } catch (error) {
      if (!(error instanceof SandfarmError)) await this.#abandon(first, job); // a callback that threw, an aborted call
      throw error;
    }
    if (job.state !== "completed") throw errorOfJob(job);
    return job as Job<R>;
  }

  async #follow(id: string, callbacks: Callbacks & WaitOptions, deadline: number): Promise<void> {
    const over = new AbortController();
    const timer = deadline === Infinity ? undefined : setTimeout(() => over.abort(), deadline - Date.now());
    const signal = callbacks.signal ? AbortSignal.any([callbacks.signal, over.signal]) : over.signal;
    let formats: DisplayData[] = [];
    try {
      for await (const event of this.events(id, { signal })) {
        if (event.name === "stdout") await callbacks.onStdout?.(event.data.text);
        else if (event.name === "stderr") await callbacks.onStderr?.(event.data.text);
        else if (event.name === "clear") await callbacks.onClear?.(event.data.wait);
        else if (event.name === "artifact") await callbacks.onArtifact?.(event.data);
        else if (event.name === "progress") await callbacks.onProgress?.(event.data);
        else if (event.name === "display") {
          formats.push(event.data);
          if (event.data.more) continue;
          const complete = new Display(formats);
          formats = [];
          await callbacks.onDisplay?.(complete);
        }
      }
    } catch (error) {
      if (over.signal.aborted && !callbacks.signal?.aborted) return; // the wait that follows says so
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  /** Cancels a job. If its id is not known, sending the request again with the same key returns it. */
  async #abandon(call: Call, job: Job | undefined): Promise<void> {
    const signal = AbortSignal.timeout(CLEAN_UP);
    try {
      const { id, sandbox_id } = job ?? accepted(await this.#transport.json<Job>({ ...call, wait: 0, signal }));
      if (call.route === "POST /v1/sandboxes") await this.#transport.json({ route: "DELETE /v1/sandboxes/{id}", params: { id: sandbox_id }, signal });
      else await this.#transport.json({ route: "DELETE /v1/jobs/{id}", params: { id }, signal });
    } catch {
      // the caller gets the reason why it gave up
    }
  }
}

/** The job in an answer. The answer to a create has the sandbox beside the job. */
function accepted<R extends Result>(answer: Job<R> | Created | undefined): Job<R> {
  const job = (answer && "job" in answer ? answer.job : answer) as Job<R> | undefined;
  if (!job?.id) throw new SandfarmError("the answer has no job and is not from a Sandfarm: check the address", { code: "internal" });
  return job;
}
