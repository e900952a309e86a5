import { remarks } from "./results.js";
import type { DisplayData, ExecuteResult, Rich } from "./schema.js";

/** A displayed value, in all of its formats. */
export class Display {
  /** Number of the value in its job. */
  readonly display: number;
  /** The name that the code gave it, if any. */
  readonly displayId: string | undefined;
  /** By MIME type: text as it is, anything else base64. */
  readonly data: Record<string, string> = {};
  /** Links to what is too large to be sent along, by MIME type. */
  readonly links: Record<string, string> = {};
  /** How to show it, such as its size. */
  readonly metadata: Record<string, unknown>;
  /** It is the value of the last expression. */
  readonly result: boolean;
  /** It replaces the value with the same number or name. */
  readonly update: boolean;

  constructor(entries: readonly (Rich | DisplayData)[]) {
    const first = entries[0];
    this.display = first?.display ?? 0;
    this.displayId = first?.display_id;
    this.metadata = first?.metadata ?? {};
    this.result = entries.some((entry) => entry.result);
    this.update = first !== undefined && "update" in first && first.update === true;
    for (const { mime, data, url } of entries) {
      if (data !== undefined) this.data[mime] = data;
      else if (url !== undefined) this.links[mime] = url;
    }
  }

  /** Its text, as Python shows it; empty if it has none. */
  get text(): string {
    return this.data["text/plain"] ?? "";
  }

  /** The bytes of a format, such as `image/png`; undefined if they did not come with it. */
  bytes(mime: string): Uint8Array<ArrayBuffer> | undefined {
    const data = this.data[mime];
    if (data === undefined) return undefined;
    return mime.startsWith("text/") ? new TextEncoder().encode(data) : fromBase64(data);
  }
}

/** The values that code displayed, in order. */
export function displaysOf(result: Pick<ExecuteResult, "results">): Display[] {
  const groups = new Map<number, Rich[]>();
  for (const entry of result.results) groups.set(entry.display, [...(groups.get(entry.display) ?? []), entry]);
  return [...groups.values()].map((entries) => new Display(entries));
}

/** What a result shows at a terminal: both outputs, displayed values, the traceback or an exit code that is not 0, packages that could not be installed automatically, the farm's notes. */
export function textOf(result: ExecuteResult): string {
  const values = displaysOf(result).map((value) => value.text);
  const code = result.exit_code === 0 ? [] : [`exit code ${result.exit_code}`];
  const ended = result.error ? [result.error.traceback.join("\n") || `${result.error.name}: ${result.error.value}`] : code;
  return [result.stdout, result.stderr, ...values, ...ended, ...remarks(result)].map((part) => part.replace(/\n$/, "")).filter(Boolean).join("\n");
}

/** The bytes of base64. */
export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const binary = atob(text);
  return Uint8Array.from(binary, (char) => char.charCodeAt(0));
}
