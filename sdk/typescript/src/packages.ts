import type { Callbacks, Jobs } from "./jobs.js";
import type { CallOptions, Job, StartOptions, WaitOptions } from "./models.js";
import { installed, type PackagesResult } from "./results.js";
import type { InstallResult, Package, PackageItems, PackagesRequest } from "./schema.js";
import type { Call, Transport } from "./transport.js";

/** The packages of a sandbox. */
export class Packages {
  readonly #transport: Transport;
  readonly #jobs: Jobs;
  readonly #id: string;

  /** @internal */
  constructor(transport: Transport, jobs: Jobs, id: string) {
    this.#transport = transport;
    this.#jobs = jobs;
    this.#id = id;
  }

  /** Installs packages and waits. Throws ResultError if one could not be installed, unless `check` is false. */
  async install(packages: string | string[], options: Omit<PackagesRequest, "packages" | "callback_url"> & WaitOptions & Pick<Callbacks, "onProgress"> & { check?: boolean } = {}): Promise<PackagesResult> {
    const { signal, idempotencyKey, waitTimeout, onProgress, check = true, ...request } = options;
    const job = await this.#jobs.perform<InstallResult>(this.#call(packages, request), { signal, idempotencyKey, waitTimeout, onProgress });
    return installed(job.result as InstallResult, check);
  }

  /** Starts an install and returns its job. */
  start(packages: string | string[], options: Omit<PackagesRequest, "packages"> & StartOptions = {}): Promise<Job<InstallResult>> {
    const { signal, idempotencyKey, ...request } = options;
    return this.#jobs.start(this.#call(packages, request), { signal, idempotencyKey });
  }

  /** The packages of the sandbox. */
  async list(options: CallOptions = {}): Promise<Package[]> {
    return (await this.#transport.json<PackageItems>({ route: "GET /v1/sandboxes/{id}/packages", params: { id: this.#id }, signal: options.signal })).items;
  }

  /** One package: whether it is installed, being installed, or could not be. */
  status(name: string, options: CallOptions & { manager?: "pip" | "npm" } = {}): Promise<Package> {
    const { signal, ...query } = options;
    return this.#transport.json({ route: "GET /v1/sandboxes/{id}/packages/{name}", params: { id: this.#id, name }, query, signal });
  }

  #call(packages: string | string[], request: Omit<PackagesRequest, "packages">): Call {
    return { route: "POST /v1/sandboxes/{id}/packages", params: { id: this.#id }, body: { ...request, packages: [packages].flat() } };
  }
}
