import { workspacePath } from "./address.js";
import { bytesOf, download, type Part } from "./download.js";
import { SandfarmError, errorOfJob } from "./errors.js";
import type { Jobs } from "./jobs.js";
import { List } from "./list.js";
import type { CallOptions, Job, StartOptions } from "./models.js";
import type { FileEntry, FileResult, Files as Listing, Link } from "./schema.js";
import { invalid, type Call, type Content, type Transport } from "./transport.js";

/**
 * The workspace of a sandbox. A change is a job, in line with the sandbox's other jobs, and is done when its call returns. Paths are
 * relative to the workspace, or absolute below /workspace.
 */
export class Files {
  readonly #transport: Transport;
  readonly #jobs: Jobs;
  readonly #id: string;

  /** @internal */
  constructor(transport: Transport, jobs: Jobs, id: string) {
    this.#transport = transport;
    this.#jobs = jobs;
    this.#id = id;
  }

  /** The entries of a directory; with `recursive` of the whole tree. */
  list(path = "", options: CallOptions & { recursive?: boolean } = {}): List<FileEntry> {
    const { signal, recursive = false } = options;
    const query = { path: workspacePath(path), recursive };
    return new List((cursor) => this.#transport.json<Listing>({ route: "GET /v1/sandboxes/{id}/files", params: { id: this.#id }, query: { ...query, cursor }, wait: -1, signal }));
  }

  /** Describes a file. */
  async stat(path: string, options: CallOptions = {}): Promise<FileEntry> {
    const at = this.#at(path);
    const { headers } = await this.#transport.open({ route: "HEAD /v1/sandboxes/{id}/files/{path}", params: at, wait: -1, signal: options.signal });
    const modified = headers.get("Last-Modified");
    return {
      path: at.path,
      size: Number(headers.get("Content-Length") ?? 0),
      mode: headers.get("X-File-Mode") ?? "",
      modified_at: modified ? new Date(modified).toISOString() : "",
      type: (headers.get("X-File-Type") ?? "file") as FileEntry["type"],
    };
  }

  /** Whether there is a file or directory. */
  async exists(path: string, options: CallOptions = {}): Promise<boolean> {
    try {
      await this.stat(path, options);
      return true;
    } catch (error) {
      if (error instanceof SandfarmError && error.code === "not_found") return false;
      throw error;
    }
  }

  /** A file as a stream. When the connection breaks, it continues with the rest. */
  stream(path: string, options: CallOptions & Part = {}): ReadableStream<Uint8Array<ArrayBuffer>> {
    const params = this.#at(path);
    const { signal } = options;
    return download((headers) => this.#transport.open({ route: "GET /v1/sandboxes/{id}/files/{path}", params, headers, wait: -1, signal }), options, signal);
  }

  /** The bytes of a file. */
  async read(path: string, options: CallOptions & Part = {}): Promise<Uint8Array<ArrayBuffer>> {
    return bytesOf(this.stream(path, options));
  }

  /** A file as text. */
  async readText(path: string, options: CallOptions = {}): Promise<string> {
    return new TextDecoder().decode(await this.read(path, options));
  }

  /** Writes a file, and the directories above it. */
  write(path: string, content: Content, options: StartOptions = {}): Promise<FileEntry> {
    const headers = { "Content-Type": "application/octet-stream" };
    return this.#change({ route: "PUT /v1/sandboxes/{id}/files/{path}", params: this.#at(path), headers, content }, options);
  }

  /** Unpacks a tar into a directory: all of it or nothing. */
  async writeTar(path: string, tar: Content, options: StartOptions = {}): Promise<FileEntry[]> {
    const headers = { "Content-Type": "application/x-tar" };
    return this.#many({ route: "POST /v1/sandboxes/{id}/files", params: { id: this.#id }, query: { path: workspacePath(path) || undefined }, headers, content: tar }, options);
  }

  /** Makes a directory, and those above it. */
  mkdir(path: string, options: StartOptions = {}): Promise<FileEntry> {
    const { id, path: at } = this.#at(path);
    return this.#change({ route: "PUT /v1/sandboxes/{id}/files/{path}", params: { id, path: `${at}/` }, wait: -1 }, options);
  }

  /** Moves or renames a file or directory. */
  move(from: string, to: string, options: StartOptions = {}): Promise<FileEntry> {
    const body = { from: workspacePath(from), to: workspacePath(to) };
    return this.#change({ route: "POST /v1/sandboxes/{id}/files/move", params: { id: this.#id }, body, wait: -1 }, options);
  }

  /** Deletes a file, or a directory with all that is in it. */
  async remove(path: string, options: StartOptions = {}): Promise<void> {
    await this.#many({ route: "DELETE /v1/sandboxes/{id}/files/{path}", params: this.#at(path), wait: -1 }, options);
  }

  /** A link that works without a key, until it expires. Not in browsers, which do not let programs see where a redirect leads. */
  async url(path: string, options: CallOptions = {}): Promise<string> {
    const call: Call = { route: "GET /v1/sandboxes/{id}/files/{path}", params: this.#at(path), query: { link: true }, wait: -1, signal: options.signal };
    return (await this.#transport.json<Link>(call)).url;
  }

  #at(path: string): { id: string; path: string } {
    const at = workspacePath(path);
    if (!at) throw invalid("the path is empty: pass the path of a file in the workspace");
    return { id: this.#id, path: at };
  }

  async #change(call: Call, options: StartOptions): Promise<FileEntry> {
    const [entry] = await this.#many(call, options);
    if (!entry) throw new SandfarmError("the answer has no file", { code: "internal" });
    return entry;
  }

  /** Makes a request that changes files. If the farm answers with a job, waits for it. */
  async #many(call: Call, options: StartOptions): Promise<FileEntry[]> {
    const { signal } = options;
    const answer = await this.#transport.answer<Partial<FileEntry & Listing & Job>>({ ...call, key: options.idempotencyKey, signal });
    let data: Partial<FileEntry & Listing & Job> | undefined = answer.data;
    if (answer.status === 202 && data?.id) data = await this.#jobs.wait(data.id, { signal });
    if (data?.state && data.state !== "completed") throw errorOfJob(data as Job);
    if (data?.state) return (data.result as FileResult | null)?.entries ?? [];
    return data?.items ?? (data?.path === undefined ? [] : [data as FileEntry]);
  }
}
