import { SandfarmError } from "./errors.js";
import { Parser, type Frame } from "./sse.js";
import { TimeLimit, backoff, pause, type Call, type Transport } from "./transport.js";

/** Milliseconds without a byte after which a stream is broken: the farm sends a heartbeat every 15 seconds. */
const SILENCE = 60_000;

/** How often in a row, without an event in between, a stream is opened again. */
export const MAX_RECONNECTS = 8;

/** An event with its data. */
export interface Event {
  id: string;
  name: string;
  data: unknown;
}

/**
 * Server-sent events, from the first or behind `after`, without end. When the connection breaks, the stream resumes behind the last
 * event. Leaving the loop closes the connection.
 */
export async function* events(transport: Transport, call: Call, after = ""): AsyncGenerator<Event, never, undefined> {
  let attempt = 0; // how often in a row it broke
  let broken = 0;
  for (;;) {
    let cause: unknown = "the stream ended";
    try {
      for await (const frame of frames(transport, call, after)) {
        attempt = 0;
        after = frame.id;
        yield { id: frame.id, name: frame.name, data: JSON.parse(frame.data) as unknown };
      }
    } catch (error) {
      call.signal?.throwIfAborted();
      if (error instanceof Done) throw error.error;
      cause = error;
    }
    if (++attempt === 1) broken = Date.now();
    if (attempt >= MAX_RECONNECTS && Date.now() - broken >= transport.outage) {
      throw new SandfarmError(`the stream ${call.route} broke ${attempt} times in a row: ${String(cause)}`, { code: "unavailable", cause });
    }
    await pause(backoff(attempt), call.signal);
  }
}

/** An error that opening the stream again would not mend. */
class Done extends Error {
  constructor(readonly error: unknown) {
    super();
  }
}

/** The events of one connection. */
async function* frames(transport: Transport, call: Call, after: string): AsyncGenerator<Frame, void, undefined> {
  const silence = new TimeLimit(SILENCE, call.signal);
  const headers = { Accept: "text/event-stream", ...(after && { "Last-Event-ID": after }) };
  let reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
  try {
    let response: Response;
    try {
      response = await transport.open({ ...call, headers, signal: silence.signal });
    } catch (error) {
      throw error instanceof SandfarmError && error.code !== "unavailable" ? new Done(error) : error;
    }
    reader = response.body?.getReader();
    const parser = new Parser(after);
    const decoder = new TextDecoder();
    while (reader) {
      silence.restart();
      const { done, value } = await reader.read();
      silence.end(); // the time that the caller takes does not count
      if (done) return;
      yield* parser.feed(decoder.decode(value, { stream: true }));
    }
  } finally {
    silence.end();
    await reader?.cancel().catch(() => undefined);
  }
}
