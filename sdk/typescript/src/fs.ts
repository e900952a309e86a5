import { absolutePath } from "./address.js";
import { bytesOf, download, type Part } from "./download.js";
import { SandfarmError } from "./errors.js";
import { List } from "./list.js";
import type { CallOptions, Change } from "./models.js";
import type { FsChange, FsEntry, FsListing, GetSandboxesIdFsPathQuery, GetSandboxesIdWatchQuery } from "./schema.js";
import { events } from "./stream.js";
import { invalid, type Content, type Transport } from "./transport.js";

/** How to write a file. */
export interface WriteOptions extends CallOptions {
  /** Write behind the end. */
  append?: boolean;
  /** Write from this byte on, and keep the rest. */
  offset?: number;
  /** Permissions, such as 0o600. Default: those that the file has, or 0o644. */
  mode?: number;
  /** The etag that the file must have; otherwise the error has the status 412. */
  ifMatch?: string;
  /** There must be no file. */
  isNew?: boolean;
}

/**
 * All files of a sandbox, by absolute path or relative to the workspace. Calls act at once, beside running jobs, and may do what the
 * sandbox's user may do.
 */
export class FS {
  readonly #transport: Transport;
  readonly #id: string;

  /** @internal */
  constructor(transport: Transport, id: string) {
    this.#transport = transport;
    this.#id = id;
  }

  /** The entries below a directory, down to a depth (default 1). */
  list(path = "", options: CallOptions & { depth?: number } = {}): List<FsEntry> {
    const { signal, depth = 1 } = options;
    return new List((cursor) => this.#transport.json<FsListing>({ route: "GET /v1/sandboxes/{id}/fs", params: { id: this.#id }, query: { path, depth, cursor }, signal }));
  }

  /** Describes a file: type, size, owner, link target, etag. */
  async stat(path: string, options: CallOptions = {}): Promise<FsEntry> {
    const [entry] = await this.list(path, { ...options, depth: 0 }).toArray(1);
    if (!entry) throw new SandfarmError(`the farm did not describe ${path}`, { code: "internal" });
    return entry;
  }

  /** Whether there is a file or directory. A link is followed. */
  async exists(path: string, options: CallOptions = {}): Promise<boolean> {
    try {
      await this.#transport.open({ route: "HEAD /v1/sandboxes/{id}/fs/{path}", params: this.#at(path), signal: options.signal });
      return true;
    } catch (error) {
      if (error instanceof SandfarmError && error.code === "not_found") return false;
      throw error;
    }
  }

  /** A file as a stream. When the connection breaks, it continues with the same version or fails. */
  stream(path: string, options: CallOptions & Part = {}): ReadableStream<Uint8Array<ArrayBuffer>> {
    const params = this.#at(path);
    const { signal } = options;
    const version = (response: Response): Record<string, string> => {
      const etag = response.headers.get("ETag");
      return etag ? { "If-Match": etag } : {};
    };
    return download((headers) => this.#transport.open({ route: "GET /v1/sandboxes/{id}/fs/{path}", params, headers, signal }), options, signal, version);
  }

  /** The bytes of a file. */
  async read(path: string, options: CallOptions & Part = {}): Promise<Uint8Array<ArrayBuffer>> {
    return bytesOf(this.stream(path, options));
  }

  /** A file as text. */
  async readText(path: string, options: CallOptions = {}): Promise<string> {
    return new TextDecoder().decode(await this.read(path, options));
  }

  /** A directory as a stream of tar. It cannot be resumed. */
  tar(path: string, options: CallOptions = {}): Promise<ReadableStream<Uint8Array<ArrayBuffer>>> {
    return this.#packed(path, { tar: true }, options);
  }

  /** A directory as a stream of zip. It cannot be resumed. */
  zip(path: string, options: CallOptions = {}): Promise<ReadableStream<Uint8Array<ArrayBuffer>>> {
    return this.#packed(path, { zip: true }, options);
  }

  /** Replaces a file in one step; with `append` or `offset` writes in place. */
  write(path: string, content: Content, options: WriteOptions = {}): Promise<FsEntry> {
    const { append, offset, mode, ifMatch, isNew, signal } = options;
    const headers: Record<string, string> = { "Content-Type": "application/octet-stream" };
    if (ifMatch !== undefined) headers["If-Match"] = ifMatch === "*" ? ifMatch : `"${ifMatch}"`;
    if (isNew) headers["If-None-Match"] = "*";
    const query = { append, offset, mode: mode?.toString(8) };
    const once = Boolean(append || isNew || ifMatch !== undefined); // sent twice, it is not the same
    return this.#transport.json({ route: "PUT /v1/sandboxes/{id}/fs/{path}", params: this.#at(path), query, headers, content, once, signal });
  }

  /** Unpacks a tar into a directory: all of it or nothing. */
  async writeTar(path: string, tar: Content, options: CallOptions = {}): Promise<FsEntry> {
    const headers = { "Content-Type": "application/x-tar" };
    return this.#transport.json({ route: "POST /v1/sandboxes/{id}/fs", params: { id: this.#id }, query: { path }, headers, content: tar, once: true, signal: options.signal });
  }

  /** Makes a directory. */
  async mkdir(path: string, options: CallOptions = {}): Promise<void> {
    const { id, path: at } = this.#at(path);
    await this.#transport.json({ route: "PUT /v1/sandboxes/{id}/fs/{path}", params: { id, path: `${at}/` }, signal: options.signal });
  }

  /** Sets permissions (in octal digits, such as "0755"), the time of the last change, or both. */
  change(path: string, change: FsChange, options: CallOptions = {}): Promise<FsEntry> {
    return this.#transport.json({ route: "PATCH /v1/sandboxes/{id}/fs/{path}", params: this.#at(path), body: change, signal: options.signal });
  }

  /** Copies a file or a tree: the copy is there complete or not at all. */
  copy(from: string, to: string, options: CallOptions = {}): Promise<FsEntry> {
    return this.#transport.json({ route: "POST /v1/sandboxes/{id}/fs/copy", params: { id: this.#id }, body: { from, to }, once: true, signal: options.signal });
  }

  /** Moves a file or a tree. */
  move(from: string, to: string, options: CallOptions = {}): Promise<FsEntry> {
    return this.#transport.json({ route: "POST /v1/sandboxes/{id}/fs/move", params: { id: this.#id }, body: { from, to }, once: true, signal: options.signal });
  }

  /** Makes a symbolic link at `path`. */
  link(path: string, target: string, options: CallOptions = {}): Promise<FsEntry> {
    return this.#transport.json({ route: "POST /v1/sandboxes/{id}/fs/link", params: { id: this.#id }, body: { path, target }, once: true, signal: options.signal });
  }

  /** Deletes a file, or a directory with all that is in it. */
  async remove(path: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.json({ route: "DELETE /v1/sandboxes/{id}/fs/{path}", params: this.#at(path), signal: options.signal });
  }

  /**
   * What happens to a file or a directory, until you leave the loop. The first event is `ready`: changes are reported from then on. After
   * `dropped` look again: something happened that no event tells.
   */
  async *watch(path = "", options: CallOptions & Pick<GetSandboxesIdWatchQuery, "recursive" | "after"> & { ignore?: string[] } = {}): AsyncGenerator<Change, void, undefined> {
    const { signal, after, ...query } = options;
    yield* events(this.#transport, { route: "GET /v1/sandboxes/{id}/watch", params: { id: this.#id }, query: { ...query, path }, signal }, after) as AsyncGenerator<Change, void, undefined>;
  }

  async #packed(path: string, query: GetSandboxesIdFsPathQuery, { signal }: CallOptions): Promise<ReadableStream<Uint8Array<ArrayBuffer>>> {
    const response = await this.#transport.open({ route: "GET /v1/sandboxes/{id}/fs/{path}", params: this.#at(path), query, headers: { Accept: "*/*" }, signal });
    return response.body ?? new Blob([]).stream();
  }

  #at(path: string): { id: string; path: string } {
    const at = absolutePath(path);
    if (!at) throw invalid(`${JSON.stringify(path)} is not the path of a file`);
    return { id: this.#id, path: at };
  }
}
