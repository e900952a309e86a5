const MAX_EVENT_CHARS = 32 << 20;

/** One server-sent event, its data not yet parsed. */
export interface Frame {
  id: string;
  name: string;
  data: string;
}

/** Splits text into server-sent events. An incomplete last event is dropped, as the format requires. */
export class Parser {
  /** Id of the last event. */
  last: string;
  #rest = "";
  #name = "";
  #data: string[] = [];
  #size = 0;

  constructor(last = "") {
    this.last = last;
  }

  /** Adds text and returns the events that are complete with it. Throws if one is longer than 32 Mi characters. */
  feed(text: string): Frame[] {
    const out: Frame[] = [];
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop() ?? "";
    for (const line of lines) this.#line(line.endsWith("\r") ? line.slice(0, -1) : line, out);
    if (this.#size + this.#rest.length > MAX_EVENT_CHARS) throw new Error("an event is longer than 32 Mi characters");
    return out;
  }

  #line(line: string, out: Frame[]): void {
    if (line === "") {
      if (this.#data.length > 0) out.push({ id: this.last, name: this.#name, data: this.#data.join("\n") });
      this.#name = "";
      this.#data = [];
      this.#size = 0;
      return;
    }
    const at = line.indexOf(":");
    const field = at < 0 ? line : line.slice(0, at);
    let value = at < 0 ? "" : line.slice(at + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "id" && !value.includes("\0")) this.last = value;
    else if (field === "event") this.#name = value;
    else if (field === "data") {
      this.#data.push(value);
      this.#size += value.length + 1; // with its line end: an empty line takes memory, too
    }
  }
}
