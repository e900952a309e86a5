import { pathOf } from "./address.js";
import type { CallOptions } from "./models.js";
import type { PortLink, PortLinkRequest } from "./schema.js";
import type { Transport } from "./transport.js";

/** A port of a sandbox, on which a server listens. */
export class Port {
  readonly #transport: Transport;
  readonly #id: string;

  /** @internal */
  constructor(
    transport: Transport,
    id: string,
    /** Its number. */
    readonly number: number,
  ) {
    this.#transport = transport;
    this.#id = id;
  }

  /** The address of the server, for requests with the farm's key. */
  get url(): string {
    return this.#transport.url + this.#path;
  }

  /** Sends a request of any method to the server, with the farm's key, and returns its answer whatever its status. */
  fetch(path: string, init: RequestInit = {}): Promise<Response> {
    const { url, headers } = this.#transport.request(this.#path + path.replace(/^\//, ""));
    if (!new URL(url).pathname.startsWith(new URL(this.url).pathname)) throw new TypeError(`${path} leads out of the port`);
    const all = new Headers(init.headers);
    for (const [name, value] of Object.entries(headers)) all.set(name, value);
    return this.#transport.raw(url, { redirect: "manual", ...init, headers: all });
  }

  /**
   * An address that needs no key: whoever has it uses this port. It ends after `expires_seconds` (default an hour), or with the sandbox.
   * With `path_style` it is a path below the farm's address, for programs that do not resolve the host of a port.
   */
  link(options: CallOptions & Omit<PortLinkRequest, "port"> = {}): Promise<PortLink> {
    const { signal, ...rest } = options;
    return this.#transport.json({ route: "POST /v1/sandboxes/{id}/port-links", params: { id: this.#id }, body: { port: this.number, ...rest }, once: true, signal });
  }

  get #path(): string {
    return pathOf("/v1/sandboxes/{id}/ports/{port}/", { id: this.#id, port: String(this.number) });
  }
}
