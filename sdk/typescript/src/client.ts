import { Admin } from "./admin.js";
import { Artifacts } from "./artifacts.js";
import { Jobs, type Callbacks } from "./jobs.js";
import { List } from "./list.js";
import type { CallOptions, Job, SandboxInfo, StartOptions, WaitOptions } from "./models.js";
import { installed, ranCode, type RunResult } from "./results.js";
import { Sandbox, split } from "./sandbox.js";
import type { CreateRequest, ExecuteResult, GetSandboxesQuery, Health, Image, ImageItems, InstallResult, Limits, Queue, QueueItems, Ready, RunRequest, SandboxList, Usage, Worker, WorkerItems } from "./schema.js";
import { invalid, kindOf, Transport, type ClientOptions } from "./transport.js";

/** Files of a run, by path: text or bytes. */
export type InputFiles = Record<string, string | Uint8Array>;

/** How to run code in a sandbox of its own: fields of the API by their names, and options of this package. */
export type RunOptions = Omit<RunRequest, "code" | "files" | "callback_url"> & WaitOptions & Callbacks & { files?: InputFiles; check?: boolean };

/**
 * One farm. A request that starts a job has an Idempotency-Key, so a retry after a broken connection runs nothing twice. Those requests,
 * reads and whole-file writes are repeated when the connection breaks or the farm answers 503; every request is repeated after a 429.
 */
export class Client {
  /** Its jobs. */
  readonly jobs: Jobs;
  /** The files that jobs created. */
  readonly artifacts: Artifacts;
  /** Keys, tenants and the audit, for operators. */
  readonly admin: Admin;
  readonly #transport: Transport;

  /** Sends nothing. Throws SandfarmError with the code `invalid` if the address or the key cannot be used, and TypeError for an address alone. */
  constructor(options: ClientOptions = {}) {
    if (typeof options === "string" || options instanceof URL) throw new TypeError("new Client takes options, not an address: new Client({ url })");
    this.#transport = new Transport(options);
    this.jobs = new Jobs(this.#transport);
    this.artifacts = new Artifacts(this.#transport);
    this.admin = new Admin(this.#transport);
  }

  /** The address of the farm. */
  get url(): string {
    return this.#transport.url;
  }

  /**
   * Creates a sandbox and waits until it is ready. If one of its packages could not be installed, it closes the sandbox and throws ResultError, unless
   * `check` is false.
   */
  async create(options: Omit<CreateRequest, "callback_url"> & WaitOptions & Pick<Callbacks, "onProgress"> & { check?: boolean } = {}): Promise<Sandbox> {
    const [body, wait, check] = split({ check: true, ...options });
    const job = await this.jobs.perform<InstallResult>({ route: "POST /v1/sandboxes", body }, wait);
    const sandbox = this.sandbox(job.sandbox_id);
    try {
      if (job.result) installed(job.result, check);
    } catch (error) {
      await sandbox.close().catch(() => undefined); // why it is closed is more important
      throw error;
    }
    return sandbox;
  }

  /** Creates a sandbox, calls a function with it, and closes it. */
  async with<T>(options: Parameters<Client["create"]>[0], use: (sandbox: Sandbox) => Promise<T>): Promise<T> {
    const sandbox = await this.create(options);
    try {
      return await use(sandbox);
    } finally {
      await sandbox.close();
    }
  }

  /** A handle of an existing sandbox. It sends no request. */
  sandbox(id: string): Sandbox {
    return new Sandbox(this.#transport, this.jobs, id);
  }

  /** Lists sandboxes, newest first. */
  sandboxes(filter: Omit<GetSandboxesQuery, "cursor"> = {}, options: CallOptions = {}): List<SandboxInfo> {
    return new List((cursor) => this.#transport.json<SandboxList>({ route: "GET /v1/sandboxes", query: { ...filter, cursor }, signal: options.signal }));
  }

  /** Runs code in a sandbox of its own, with its files and packages, and waits for its result. See Sandbox.run. */
  async run(code: string, options: RunOptions = {}): Promise<RunResult> {
    const { files, ...rest } = options;
    const [request, wait, check] = split(rest);
    const job = await this.jobs.perform<ExecuteResult>({ route: "POST /v1/run", body: { ...request, ...inputs(files), code } }, wait);
    return ranCode(job.result as ExecuteResult, check);
  }

  /** Starts such a run and returns its job. */
  async submit(code: string, options: Omit<RunRequest, "code" | "files"> & StartOptions & { files?: InputFiles } = {}): Promise<Job<ExecuteResult>> {
    const { signal, idempotencyKey, files, ...request } = options;
    return this.jobs.start({ route: "POST /v1/run", body: { ...request, ...inputs(files), code } }, { signal, idempotencyKey });
  }

  /** The images of the farm. */
  async images(options: CallOptions = {}): Promise<Image[]> {
    return (await this.#transport.json<ImageItems>({ route: "GET /v1/images", signal: options.signal })).items;
  }

  /** The limits of the farm. */
  limits(options: CallOptions = {}): Promise<Limits> {
    return this.#transport.json({ route: "GET /v1/limits", signal: options.signal });
  }

  /** What the tenant of the key uses now, and used on each day. */
  usage(options: CallOptions & { days?: number } = {}): Promise<Usage> {
    return this.#transport.json({ route: "GET /v1/usage", query: { days: options.days }, signal: options.signal });
  }

  /** The queues of the farm. */
  async queues(options: CallOptions = {}): Promise<Queue[]> {
    return (await this.#transport.json<QueueItems>({ route: "GET /v1/queues", signal: options.signal })).items;
  }

  /** The workers of the farm. */
  async workers(options: CallOptions = {}): Promise<Worker[]> {
    return (await this.#transport.json<WorkerItems>({ route: "GET /v1/workers", signal: options.signal })).items;
  }

  /** Whether the API answers, and its version. */
  health(options: CallOptions = {}): Promise<Health> {
    return this.#transport.json({ route: "GET /healthz", signal: options.signal });
  }

  /** Whether the farm can work. Throws SandfarmError with the code `unavailable` if it cannot. */
  ready(options: CallOptions = {}): Promise<Ready> {
    return this.#transport.json({ route: "GET /readyz", signal: options.signal });
  }
}

function inputs(files: InputFiles | undefined): Pick<RunRequest, "files"> {
  if (!files) return {};
  if (typeof files !== "object" || Array.isArray(files)) throw invalid(`files has the content of each path, such as { "in.txt": "text" }; it is ${Array.isArray(files) ? "an array" : String(files)}`);
  const all = Object.entries(files).map(([path, content]) => {
    if (typeof content === "string") return { path, content };
    if (!(content instanceof Uint8Array)) throw invalid(`files: the content of ${path} is a string or a Uint8Array, not ${kindOf(content)}`);
    return { path, content_base64: toBase64(content) };
  });
  return { files: all };
}

function toBase64(bytes: Uint8Array): string {
  let binary = "";
  for (let at = 0; at < bytes.length; at += 0x8000) binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(binary);
}
