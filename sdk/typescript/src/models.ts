import type * as wire from "./schema.js";

/** A job: everything that takes time is one. `result` has the shape of its `kind`. */
export type Job<R extends wire.Result = wire.Result> = Omit<wire.Job, "result"> & { result: R | null };

/** A sandbox as the farm describes it. */
export type SandboxInfo = wire.Sandbox;

/** A process as the farm describes it. */
export type ProcessInfo = wire.Process;

/** How a process ended. */
export interface Exit {
  exit_code: number;
  timed_out: boolean;
  stopped: boolean;
  out_of_memory: boolean;
}

/** Options of every call. */
export interface CallOptions {
  /** Ends the call. */
  signal?: AbortSignal | undefined;
}

/** Options of calls that start a job. */
export interface StartOptions extends CallOptions {
  /** Your own Idempotency-Key, for a program that may be restarted: the same key and request give the same job. */
  idempotencyKey?: string | undefined;
}

/** Options of calls that start a job and wait for it. Aborting one cancels the job. */
export interface WaitOptions extends StartOptions {
  /** Milliseconds to wait for the job; then WaitTimeout is thrown, and the job continues. */
  waitTimeout?: number | undefined;
}

/** An event of a job. */
export type JobEvent =
  | { id: string; name: "stdout" | "stderr"; data: wire.TextData }
  | { id: string; name: "display"; data: wire.DisplayData }
  | { id: string; name: "clear"; data: wire.ClearData }
  | { id: string; name: "progress"; data: wire.ProgressData }
  | { id: string; name: "artifact"; data: wire.Artifact }
  | { id: string; name: "state"; data: wire.StateData };

/** What happened to a watched file: `ready` once, then changes; `dropped` means that some are missing. */
export type Change =
  | { id: string; name: "ready"; data: wire.WatchReady }
  | { id: string; name: "created" | "changed" | "removed" | "renamed"; data: wire.FileChange }
  | { id: string; name: "dropped"; data: wire.ChangesDropped };

const running = new Set<string>(["queued", "running"]);

/** Whether a state of a job is final. */
export function isFinal(state: wire.Job["state"]): boolean {
  return !running.has(state);
}
