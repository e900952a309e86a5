/**
 * The client of a Sandfarm: runs code that language models write, in sandboxes. Begin with `Client`. Fields of the farm's API have its
 * names (`timeout_seconds`); what belongs to this package is written in camelCase (`signal`, `onStdout`).
 *
 * @packageDocumentation
 */
export { Client, type InputFiles, type RunOptions } from "./client.js";
export { Sandbox, type CommandOptions, type ExecuteOptions } from "./sandbox.js";
export { Jobs, type BatchEntry, type Callbacks } from "./jobs.js";
export { Admin } from "./admin.js";
export { Artifacts } from "./artifacts.js";
export { Files } from "./files.js";
export { FS, type WriteOptions } from "./fs.js";
export { Packages } from "./packages.js";
export { Port } from "./ports.js";
export { Process, Processes, type Output } from "./processes.js";
export { List, type Page } from "./list.js";
export { Display, displaysOf, textOf } from "./display.js";
export { JobError, ResultError, SandfarmError, WaitTimeout, type ErrorCode, type ErrorDetails } from "./errors.js";
export type { BashResult, PackagesResult, RunResult } from "./results.js";
export { isFinal, type CallOptions, type Change, type Exit, type Job, type JobEvent, type ProcessInfo, type SandboxInfo, type StartOptions, type WaitOptions } from "./models.js";
export type { ClientOptions, Content } from "./transport.js";
export type { Part } from "./download.js";
export { VERSION } from "./version.js";
export type * from "./schema.js";
