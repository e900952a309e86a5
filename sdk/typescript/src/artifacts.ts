import { bytesOf, download, type Part } from "./download.js";
import { List } from "./list.js";
import type { CallOptions } from "./models.js";
import type { Artifact, ArtifactList, GetArtifactsQuery } from "./schema.js";
import type { Transport } from "./transport.js";

/** The files that jobs created or changed, which outlive their sandboxes. */
export class Artifacts {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Lists artifacts, newest first. */
  list(filter: Omit<GetArtifactsQuery, "cursor"> = {}, options: CallOptions = {}): List<Artifact> {
    return new List((cursor) => this.#transport.json<ArtifactList>({ route: "GET /v1/artifacts", query: { ...filter, cursor }, signal: options.signal }));
  }

  /** Describes an artifact, with a fresh link in `url` that works without a key until it expires. */
  get(id: string, options: CallOptions = {}): Promise<Artifact> {
    return this.#transport.json({ route: "GET /v1/artifacts/{id}/meta", params: { id }, signal: options.signal });
  }

  /** An artifact as a stream. When the connection breaks, it continues with the rest. */
  stream(artifact: Artifact | string, options: CallOptions & Part = {}): ReadableStream<Uint8Array<ArrayBuffer>> {
    const { signal } = options;
    const id = typeof artifact === "string" ? artifact : artifact.id;
    const open = async (headers: Record<string, string>): Promise<Response> => this.#transport.fetch((await this.get(id, { signal })).url, headers, signal);
    return download(open, options, signal);
  }

  /** The bytes of an artifact. */
  read(artifact: Artifact | string, options: CallOptions & Part = {}): Promise<Uint8Array<ArrayBuffer>> {
    return bytesOf(this.stream(artifact, options));
  }

  /** An artifact as text. */
  async readText(artifact: Artifact | string, options: CallOptions = {}): Promise<string> {
    return new TextDecoder().decode(await this.read(artifact, options));
  }

  /** Deletes an artifact. Links to it no longer work. */
  async remove(artifact: Artifact | string, options: CallOptions = {}): Promise<void> {
    const id = typeof artifact === "string" ? artifact : artifact.id;
    await this.#transport.json({ route: "DELETE /v1/artifacts/{id}", params: { id }, signal: options.signal });
  }
}
