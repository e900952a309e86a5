import { List } from "./list.js";
import type { CallOptions } from "./models.js";
import type { AuditEntry, AuditEntryList, Drain, DrainRequest, FleetEvent, FleetEventItems, GetAuditQuery, GetKeysQuery, Key, KeyList, KeyRequest, Minute, MinuteItems, NewKey, NodeNeed, NodeNeedItems, Tenant, TenantChange, TenantList, TenantRequest, Usage } from "./schema.js";
import type { Transport } from "./transport.js";

/** API keys, tenants, nodes and the audit, for operators: the client's own key needs the scope `admin`. */
export class Admin {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Lists API keys: id, scopes, last use; never the keys themselves. */
  keys(filter: Omit<GetKeysQuery, "cursor"> = {}, options: CallOptions = {}): List<Key> {
    return new List((cursor) => this.#transport.json<KeyList>({ route: "GET /v1/keys", query: { ...filter, cursor }, signal: options.signal }));
  }

  /** Makes an API key. Only this answer has its secret. */
  createKey(request: KeyRequest, options: CallOptions = {}): Promise<NewKey> {
    return this.#transport.json({ route: "POST /v1/keys", body: request, once: true, signal: options.signal });
  }

  /** Revokes an API key, by its id. */
  async revokeKey(id: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.json({ route: "DELETE /v1/keys/{id}", params: { id }, signal: options.signal });
  }

  /** Who asked for what, newest first. */
  audit(filter: Omit<GetAuditQuery, "cursor"> = {}, options: CallOptions = {}): List<AuditEntry> {
    return new List((cursor) => this.#transport.json<AuditEntryList>({ route: "GET /v1/audit", query: { ...filter, cursor }, signal: options.signal }));
  }

  /** Lists tenants with their quotas. */
  tenants(options: CallOptions = {}): List<Tenant> {
    return new List((cursor) => this.#transport.json<TenantList>({ route: "GET /v1/tenants", query: { cursor }, signal: options.signal }));
  }

  /** A tenant with its quotas and what it uses of them. */
  tenant(name: string, options: CallOptions = {}): Promise<Tenant> {
    return this.#transport.json({ route: "GET /v1/tenants/{name}", params: { name }, signal: options.signal });
  }

  /** Sets all quotas of a tenant. Those that are left out get the farm's default; -1 means no bound. */
  setTenant(name: string, request: TenantRequest, options: CallOptions = {}): Promise<Tenant> {
    return this.#transport.json({ route: "PUT /v1/tenants/{name}", params: { name }, body: request, signal: options.signal });
  }

  /** Changes the quotas that are named, in one step. */
  changeTenant(name: string, change: TenantChange, options: CallOptions = {}): Promise<Tenant> {
    return this.#transport.json({ route: "PATCH /v1/tenants/{name}", params: { name }, body: change, signal: options.signal });
  }

  /** What a tenant uses now, and used on each day. */
  usage(name: string, options: CallOptions & { days?: number } = {}): Promise<Usage> {
    return this.#transport.json({ route: "GET /v1/tenants/{name}/usage", params: { name }, query: { days: options.days }, signal: options.signal });
  }

  /** The minutes of the last hour, the oldest first, with what became of the jobs that workers ended. */
  async activity(options: CallOptions = {}): Promise<Minute[]> {
    return (await this.#transport.json<MinuteItems>({ route: "GET /v1/activity", signal: options.signal })).items;
  }

  /** What happened to workers and nodes, the newest first; the farm keeps 200. */
  async fleetEvents(options: CallOptions & { limit?: number } = {}): Promise<FleetEvent[]> {
    return (await this.#transport.json<FleetEventItems>({ route: "GET /v1/events", query: { limit: options.limit }, signal: options.signal })).items;
  }

  /** How many nodes of each kind the farm needs for what waits, nodes without GPUs first: for an autoscaler. */
  async scale(options: CallOptions = {}): Promise<NodeNeed[]> {
    return (await this.#transport.json<NodeNeedItems>({ route: "GET /v1/scale", signal: options.signal })).items;
  }

  /** Drains a node: it takes no new sandboxes. `state` of the answer, and later of `nodeDrain`, says when its host may be removed. */
  drainNode(id: string, request: DrainRequest = {}, options: CallOptions = {}): Promise<Drain> {
    return this.#transport.json({ route: "POST /v1/nodes/{id}/drain", params: { id }, body: request, once: true, signal: options.signal });
  }

  /** The drain of a node, with what is left on it; the error `not_found` if it is not drained. */
  nodeDrain(id: string, options: CallOptions = {}): Promise<Drain> {
    return this.#transport.json({ route: "GET /v1/nodes/{id}/drain", params: { id }, signal: options.signal });
  }

  /** Ends the drain of a node, which takes new sandboxes again. */
  async endNodeDrain(id: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.json({ route: "DELETE /v1/nodes/{id}/drain", params: { id }, signal: options.signal });
  }
}
