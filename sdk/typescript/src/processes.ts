import { fromBase64 } from "./display.js";
import type { CallOptions, Exit, ProcessInfo } from "./models.js";
import type { ProcessRequest, Processes as Listing, RunningProcess, TerminalSize, Written } from "./schema.js";
import { events } from "./stream.js";
import type { Content, Transport } from "./transport.js";

/** A login shell: bash where the image has it. */
const LOGIN_SHELL = "if command -v bash >/dev/null; then exec bash -l; fi; exec sh -l";

/** A piece of the output of a process. */
export interface Output {
  /** Pass it as `after` to continue after this piece. */
  id: string;
  /** `dropped`: output before the next piece was not kept. */
  kind: "stdout" | "stderr" | "dropped";
  data: Uint8Array<ArrayBuffer>;
  /** The bytes as text; what is not UTF-8 is replaced. */
  text: string;
}

/** What runs in a sandbox beside its jobs. */
export class Processes {
  readonly #transport: Transport;
  readonly #id: string;

  /** @internal */
  constructor(transport: Transport, id: string) {
    this.#transport = transport;
    this.#id = id;
  }

  /** Starts a process from a command for the shell, or from a program and its arguments. */
  async start(command: string | string[], options: Omit<ProcessRequest, "command" | "argv"> & CallOptions = {}): Promise<Process> {
    const { signal, ...request } = options;
    const body: ProcessRequest = { ...request, ...(typeof command === "string" ? { command } : { argv: command }) };
    const info = await this.#transport.json<ProcessInfo>({ route: "POST /v1/sandboxes/{id}/processes", params: { id: this.#id }, body, once: true, signal });
    return new Process(this.#transport, this.#id, info);
  }

  /** Starts a login shell, or a command, on a terminal. */
  terminal(size: TerminalSize, options: Omit<ProcessRequest, "argv" | "pty" | "stdin"> & CallOptions = {}): Promise<Process> {
    const { command = LOGIN_SHELL, ...rest } = options;
    return this.start(command, { ...rest, pty: size, stdin: true });
  }

  /** The processes that were started here; of those that have ended the newest 64. */
  async list(options: CallOptions = {}): Promise<Process[]> {
    const listing = await this.#transport.json<Listing>({ route: "GET /v1/sandboxes/{id}/processes", params: { id: this.#id }, signal: options.signal });
    return listing.items.map((info) => new Process(this.#transport, this.#id, info));
  }

  /** One of them. */
  async get(id: string, options: CallOptions = {}): Promise<Process> {
    const info = await this.#transport.json<ProcessInfo>({ route: "GET /v1/sandboxes/{id}/processes/{process}", params: { id: this.#id, process: id }, signal: options.signal });
    return new Process(this.#transport, this.#id, info);
  }

  /** Every process of the sandbox, those of jobs and kernels too. */
  async running(options: CallOptions = {}): Promise<RunningProcess[]> {
    const listing = await this.#transport.json<Listing>({ route: "GET /v1/sandboxes/{id}/processes", params: { id: this.#id }, query: { all: true }, signal: options.signal });
    return listing.running ?? [];
  }
}

/** One process. */
export class Process {
  /** What was last known of it. */
  info: ProcessInfo;
  readonly #transport: Transport;
  readonly #params: { id: string; process: string };

  /** @internal */
  constructor(transport: Transport, sandbox: string, info: ProcessInfo) {
    this.#transport = transport;
    this.#params = { id: sandbox, process: info.id };
    this.info = info;
  }

  /** Its id. */
  get id(): string {
    return this.info.id;
  }

  /** Asks the farm for its state. */
  async refresh(options: CallOptions = {}): Promise<ProcessInfo> {
    return (this.info = await this.#transport.json({ route: "GET /v1/sandboxes/{id}/processes/{process}", params: this.#params, signal: options.signal }));
  }

  /** Its output from the start, or behind the id `after`, to its exit. Reading continues when the connection breaks. */
  async *output(options: CallOptions & { after?: string } = {}): AsyncGenerator<Output, Exit, undefined> {
    const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder(), dropped: new TextDecoder() };
    const call = { route: "GET /v1/sandboxes/{id}/processes/{process}/events", params: this.#params, signal: options.signal } as const;
    for await (const event of events(this.#transport, call, options.after)) {
      if (event.name === "exit") {
        await this.refresh(options);
        return event.data as Exit;
      }
      const kind = event.name as Output["kind"];
      const { text = "", base64 } = event.data as { text?: string; base64?: string };
      const data = base64 === undefined ? new TextEncoder().encode(text) : fromBase64(base64);
      yield { id: event.id, kind, data, text: decoders[kind]?.decode(data, { stream: true }) ?? text };
    }
    throw new Error("unreachable");
  }

  /** Waits until it has ended. */
  async wait(options: CallOptions = {}): Promise<ProcessInfo> {
    for await (const output of this.output(options)) void output;
    return this.info;
  }

  /** Writes to its input, and returns how many bytes it took; `close` ends the input after that. */
  async write(data: Content, options: CallOptions & { close?: boolean } = {}): Promise<number> {
    const call = { route: "POST /v1/sandboxes/{id}/processes/{process}/stdin", params: this.#params, query: { close: options.close } } as const;
    const headers = { "Content-Type": "application/octet-stream" };
    return (await this.#transport.json<Written>({ ...call, headers, content: data, once: true, signal: options.signal })).written;
  }

  /** Sends a signal, such as `SIGINT`, to it and its group. */
  async signal(name: string, options: CallOptions = {}): Promise<ProcessInfo> {
    return (this.info = await this.#transport.json({ route: "POST /v1/sandboxes/{id}/processes/{process}/signal", params: this.#params, body: { signal: name }, once: true, signal: options.signal }));
  }

  /** Sets the size of its terminal. */
  async resize(size: TerminalSize, options: CallOptions = {}): Promise<ProcessInfo> {
    return (this.info = await this.#transport.json({ route: "POST /v1/sandboxes/{id}/processes/{process}/resize", params: this.#params, body: size, once: true, signal: options.signal }));
  }

  /** Ends it, with all that it started: SIGTERM, and after five seconds SIGKILL. */
  async end(options: CallOptions = {}): Promise<ProcessInfo> {
    return (this.info = await this.#transport.json({ route: "DELETE /v1/sandboxes/{id}/processes/{process}", params: this.#params, signal: options.signal }));
  }
}
