/// <reference lib="esnext.disposable" preserve="true" />
import { FS } from "./fs.js";
import { Files } from "./files.js";
import { List } from "./list.js";
import type { Callbacks, Jobs } from "./jobs.js";
import type { CallOptions, Job, SandboxInfo, StartOptions, WaitOptions } from "./models.js";
import { Packages } from "./packages.js";
import { Port } from "./ports.js";
import { Processes } from "./processes.js";
import { ranCode, ranCommands, type BashResult, type RunResult } from "./results.js";
import type { CommandRequest, CommandResult, ControlRequest, EgressEntry, EgressEntryList, ExecuteRequest, ExecuteResult, Ports, Route, UpdateRequest } from "./schema.js";
import type { Port as PortInfo } from "./schema.js";
import type { Transport } from "./transport.js";

/** How to run code: fields of the API by their names, and options of this package. */
export type ExecuteOptions = Omit<ExecuteRequest, "code" | "callback_url"> & WaitOptions & Callbacks & { check?: boolean };

/** How to run commands. */
export type CommandOptions = Omit<CommandRequest, "command" | "commands" | "background" | "callback_url"> & WaitOptions & Omit<Callbacks, "onDisplay" | "onClear"> & { check?: boolean };

/** One sandbox. Its jobs run one at a time, in order; variables and files are kept between them. */
export class Sandbox {
  /** Its id. */
  readonly id: string;
  /** The workspace. */
  readonly files: Files;
  /** All files, at once and beside running jobs. */
  readonly fs: FS;
  /** Its packages. */
  readonly packages: Packages;
  /** What runs beside its jobs: servers, terminals. */
  readonly processes: Processes;
  readonly #transport: Transport;
  readonly #jobs: Jobs;

  /** @internal Use Client.create or Client.sandbox. */
  constructor(transport: Transport, jobs: Jobs, id: string) {
    this.id = id;
    this.files = new Files(transport, jobs, id);
    this.fs = new FS(transport, id);
    this.packages = new Packages(transport, jobs, id);
    this.processes = new Processes(transport, id);
    this.#transport = transport;
    this.#jobs = jobs;
  }

  /**
   * Runs code and waits for its result. Code that raises is a result, too; with `check` it throws ResultError. A job that does not
   * complete throws JobError. Aborting `signal` cancels the job.
   */
  async run(code: string, options: ExecuteOptions = {}): Promise<RunResult> {
    const [request, wait, check] = split(options);
    const job = await this.#jobs.perform<ExecuteResult>({ route: "POST /v1/sandboxes/{id}/execute", params: { id: this.id }, body: { ...request, code } }, wait);
    return ranCode(job.result as ExecuteResult, check);
  }

  /** Starts code and returns its job. */
  submit(code: string, options: Omit<ExecuteRequest, "code"> & StartOptions = {}): Promise<Job<ExecuteResult>> {
    const { signal, idempotencyKey, ...request } = options;
    return this.#jobs.start({ route: "POST /v1/sandboxes/{id}/execute", params: { id: this.id }, body: { ...request, code } }, { signal, idempotencyKey });
  }

  /** Runs a command of the shell, or several one after the other, and waits. With `check` a command that fails throws ResultError. */
  async bash(command: string | string[], options: CommandOptions = {}): Promise<BashResult> {
    const [request, wait, check] = split(options);
    const job = await this.#jobs.perform<CommandResult>({ route: "POST /v1/sandboxes/{id}/commands", params: { id: this.id }, body: { ...request, ...commands(command) } }, wait);
    return ranCommands(job.result as CommandResult, check);
  }

  /** Starts commands and returns their job. The next jobs do not wait for one with `background`. */
  submitBash(command: string | string[], options: Omit<CommandRequest, "command" | "commands"> & StartOptions = {}): Promise<Job<CommandResult>> {
    const { signal, idempotencyKey, ...request } = options;
    return this.#jobs.start({ route: "POST /v1/sandboxes/{id}/commands", params: { id: this.id }, body: { ...request, ...commands(command) } }, { signal, idempotencyKey });
  }

  /** Describes the sandbox. */
  info(options: CallOptions = {}): Promise<SandboxInfo> {
    return this.#transport.json({ route: "GET /v1/sandboxes/{id}", params: { id: this.id }, signal: options.signal });
  }

  /** Changes name, lifetime, labels, hosts or the values of secrets. */
  update(change: UpdateRequest, options: CallOptions = {}): Promise<SandboxInfo> {
    return this.#transport.json({ route: "PATCH /v1/sandboxes/{id}", params: { id: this.id }, body: change, signal: options.signal });
  }

  /** Interrupts the code that runs, in all contexts or in one. */
  interrupt(options: Pick<ControlRequest, "context"> & WaitOptions = {}): Promise<Job> {
    return this.#control("POST /v1/sandboxes/{id}/interrupt", options);
  }

  /** Restarts the kernel of all contexts or of one: its variables are gone, files stay. */
  restart(options: Pick<ControlRequest, "context"> & WaitOptions = {}): Promise<Job> {
    return this.#control("POST /v1/sandboxes/{id}/restart", options);
  }

  /** Stores the memory of the sandbox and frees it, if its runtime can. The next job resumes it. */
  hibernate(options: WaitOptions = {}): Promise<Job> {
    return this.#control("POST /v1/sandboxes/{id}/hibernate", options);
  }

  /** Resumes a hibernated sandbox. */
  resume(options: WaitOptions = {}): Promise<Job> {
    return this.#control("POST /v1/sandboxes/{id}/resume", options);
  }

  /** What the sandbox connected to, the oldest first. */
  egress(options: CallOptions & { limit?: number; after?: string } = {}): List<EgressEntry> {
    const { signal, limit, after } = options;
    return new List((cursor) => this.#transport.json<EgressEntryList>({ route: "GET /v1/sandboxes/{id}/egress", params: { id: this.id }, query: { limit, after: cursor ?? after }, signal }));
  }

  /** The ports on which programs of the sandbox listen. */
  async ports(options: CallOptions = {}): Promise<PortInfo[]> {
    return (await this.#transport.json<Ports>({ route: "GET /v1/sandboxes/{id}/ports", params: { id: this.id }, signal: options.signal })).items;
  }

  /** A port, for requests to the server that listens there. */
  port(number: number): Port {
    return new Port(this.#transport, this.id, number);
  }

  /** Ends the sandbox: running jobs are canceled, artifacts are kept. */
  close(options: CallOptions = {}): Promise<Job> {
    return this.#transport.json({ route: "DELETE /v1/sandboxes/{id}", params: { id: this.id }, wait: -1, signal: options.signal });
  }

  /** Closes the sandbox at the end of a block with `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #control(route: Route, options: Pick<ControlRequest, "context"> & WaitOptions): Promise<Job> {
    const { context, ...wait } = options;
    return this.#jobs.perform({ route, params: { id: this.id }, ...(context !== undefined && { body: { context } }) }, wait);
  }
}

/** Separates the fields of a request from the options of this package. */
export function split<O extends WaitOptions & Callbacks & { check?: boolean }>(options: O): [request: object, wait: WaitOptions & Callbacks, check: boolean] {
  const { signal, idempotencyKey, waitTimeout, check = false, onStdout, onStderr, onDisplay, onClear, onArtifact, onProgress, ...request } = options;
  return [request, { signal, idempotencyKey, waitTimeout, onStdout, onStderr, onDisplay, onClear, onArtifact, onProgress }, check];
}

function commands(command: string | string[]): Pick<CommandRequest, "command" | "commands"> {
  return typeof command === "string" ? { command } : { commands: command };
}
