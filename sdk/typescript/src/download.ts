import { SandfarmError } from "./errors.js";
import { MAX_RECONNECTS } from "./stream.js";
import { backoff, pause } from "./transport.js";

/** Which part of a file to read. */
export interface Part {
  /** First byte. Default 0. */
  offset?: number | undefined;
  /** Bytes. Default: to the end. */
  length?: number | undefined;
}

/** Opens a file with headers. */
type Open = (headers: Record<string, string>) => Promise<Response>;

/** Reads a file as it comes. When the connection breaks, it continues with the rest; `version` are headers that keep it to the same one. */
export function download(open: Open, part: Part, signal?: AbortSignal, version: (response: Response) => Record<string, string> = () => ({})): ReadableStream<Uint8Array<ArrayBuffer>> {
  const chunks = read(open, part, signal, version);
  return new ReadableStream<Uint8Array<ArrayBuffer>>({
    async pull(controller) {
      const { done, value } = await chunks.next();
      if (done) controller.close();
      else controller.enqueue(value);
    },
    async cancel() {
      await chunks.return();
    },
  });
}

/** All bytes of a stream. */
export async function bytesOf(stream: ReadableStream<Uint8Array<ArrayBuffer>>): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function* read(open: Open, { offset = 0, length = Infinity }: Part, signal: AbortSignal | undefined, version: (response: Response) => Record<string, string>): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined> {
  const end = offset + length;
  if (length <= 0) return;
  let at = offset;
  let total = "";
  let same: Record<string, string> = {};
  for (let attempt = 1; ; attempt++) {
    let response: Response;
    const headers: Record<string, string> = { Accept: "*/*", "Accept-Encoding": "identity", ...same };
    if (at > 0 || end !== Infinity) headers.Range = `bytes=${at}-${end === Infinity ? "" : end - 1}`;
    try {
      response = await open(headers);
    } catch (error) {
      if (error instanceof SandfarmError && error.status === 416) return; // it ends before this byte
      throw error;
    }
    if (headers.Range && response.status !== 206) {
      await response.body?.cancel();
      throw new SandfarmError(`the whole file came instead of the part from byte ${at}`, { code: "internal" });
    }
    const size = /\/(\d+)$/.exec(response.headers.get("Content-Range") ?? "")?.[1] ?? response.headers.get("Content-Length") ?? "";
    if (total && size !== total) throw new SandfarmError("the file changed while it was read", { code: "conflict" });
    total = total || size;
    same = version(response);
    const reader = response.body?.getReader();
    try {
      while (reader) {
        const { done, value } = await reader.read();
        if (done) return;
        at += value.length;
        attempt = 0;
        yield value as Uint8Array<ArrayBuffer>;
      }
      return;
    } catch (error) {
      signal?.throwIfAborted();
      if (attempt + 1 >= MAX_RECONNECTS) throw new SandfarmError(`the download broke: ${String(error)}`, { code: "unavailable", cause: error });
    } finally {
      await reader?.cancel().catch(() => undefined);
    }
    await pause(backoff(Math.max(attempt, 1)), signal);
  }
}
