import type { FieldError, JobError as JobProblem, Problem, Quota } from "./schema.js";
import type { Job } from "./models.js";

/** Error codes of a farm. */
export type ErrorCode = Problem["code"];

/** What an error is made of, beside its message. */
export interface ErrorDetails {
  code?: ErrorCode | "";
  status?: number;
  title?: string;
  requestId?: string;
  retryAfter?: number;
  problem?: Partial<Problem>;
  cause?: unknown;
}

/**
 * Base class of the errors of this package. Look at `code`, not at the text. Aborting a call through its `signal` rejects with the
 * reason of the signal instead.
 */
export class SandfarmError extends Error {
  /** What kind of error; empty for code that was not successful (`check: true`), and for waits that are over. */
  readonly code: ErrorCode | "";
  /** HTTP status; 0 if there was no answer. */
  readonly status: number;
  /** The kind of error, in a few words. */
  readonly title: string;
  /** Every field of the request that is wrong: a JSON pointer and a sentence. */
  readonly errors: readonly FieldError[];
  /** Find it in the farm's log; empty if there is none. */
  readonly requestId: string;
  /** Seconds to wait before the next try; 0 if the farm did not say. */
  readonly retryAfter: number;
  /** The quota of the tenant that is used up, if that is why. */
  readonly quota: Quota | undefined;
  /** The problem as the farm sent it. */
  readonly problem: Partial<Problem> | undefined;

  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = new.target.name;
    this.code = details.code ?? "";
    this.status = details.status ?? 0;
    this.title = details.title ?? "";
    this.requestId = details.requestId ?? "";
    this.retryAfter = details.retryAfter ?? 0;
    this.problem = details.problem;
    this.errors = details.problem?.errors ?? [];
    this.quota = details.problem?.quota;
  }
}

/** A job did not complete: it failed, timed out, was canceled or lost. `job.result` has the output until then. */
export class JobError extends SandfarmError {
  constructor(
    message: string,
    /** The job as it ended. */
    readonly job: Job,
    code: ErrorCode,
  ) {
    super(message, { code });
  }
}

/** The time to wait is over. The job continues: wait again, or cancel it. */
export class WaitTimeout extends SandfarmError {
  constructor(
    message: string,
    /** The job as it was last seen. */
    readonly job: Job,
  ) {
    super(message);
  }
}

/** What ran was not successful. Only calls with `check: true`, and installs, throw it. The end of its message are the packages that could not be installed automatically, and the farm's notes. */
export class ResultError<R = unknown> extends SandfarmError {
  constructor(
    message: string,
    /** The whole result. */
    readonly result: R,
  ) {
    super(message);
  }
}

const codeByStatus: Record<number, ErrorCode> = {
  401: "unauthorized",
  403: "unauthorized",
  404: "not_found",
  409: "conflict",
  410: "not_found",
  412: "conflict",
  413: "too_large",
  429: "exhausted",
  502: "unavailable",
  503: "unavailable",
  504: "unavailable",
};

/** The error for an answer with a status of 400 or above. `problem` is its JSON, or empty. */
export function errorOf(status: number, problem: Partial<Problem>, title: string, requestId: string, retryAfter: number): SandfarmError {
  const code = problem.code ?? codeByStatus[status] ?? (status < 500 ? "invalid" : "internal");
  const message = problem.detail || problem.title || title || "no reason given";
  return new SandfarmError(status === 401 ? `${message} Set SANDFARM_API_KEY, or give apiKey.` : message, {
    code,
    status,
    title: problem.title ?? title,
    requestId: problem.request_id || requestId,
    retryAfter,
    problem,
  });
}

/** The error for a final job that did not complete. */
export function errorOfJob(job: Job): JobError {
  const failure: JobProblem | null = job.error;
  const code = job.state === "timed_out" || job.state === "canceled" ? "conflict" : "internal";
  return new JobError(failure?.message ?? `the job ${job.id} is ${job.state}`, job, failure?.code ?? code);
}
