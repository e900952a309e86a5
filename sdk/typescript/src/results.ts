import { ResultError } from "./errors.js";
import type { CommandResult, ExecuteResult, InstalledOne, InstallResult } from "./schema.js";

/** The result of code, and whether it was successful: it raised nothing, and its exit code is 0. */
export type RunResult = ExecuteResult & { ok: boolean };

/** The result of commands, and of all of them together. */
export type BashResult = CommandResult & {
  /** The standard output of all commands. */
  stdout: string;
  /** The standard error of all commands. */
  stderr: string;
  /** The exit code of the first command that failed; 0 if none did. */
  exit_code: number;
  /** Whether every exit code is 0. */
  ok: boolean;
};

/** The result of an install, and of all its packages together. */
export type PackagesResult = InstallResult & {
  /** Whether every package is installed. */
  ok: boolean;
  /** The installed versions, by name. */
  versions: Record<string, string>;
};

// What notes of the farm name, and what it is in this package.
const here: readonly [RegExp, string][] = [
  [/POST \/v1\/sandboxes\/\w+\/packages with manager npm/g, 'sandbox.packages.install(…, { manager: "npm" })'],
  [/POST \/v1\/sandboxes\/\w+\/packages\b/g, "sandbox.packages.install(…)"],
  [/GET \/v1\/sandboxes\/\w+\/packages\b/g, "sandbox.packages.list()"],
  [/POST \/v1\/sandboxes\/\w+\/(restart|resume)\b/g, "sandbox.$1()"],
  [/POST …\/processes with stdin/g, "sandbox.processes.start(…, { stdin: true })"],
  [/PATCH \/v1\/sandboxes\/\{id\} or sandfarm sandbox allow/g, "sandbox.update({ allow_hosts })"],
  [/\(files of a run, --file of sandfarm run\)/g, "(files of a run)"],
  [/\(sandfarm cp, upload_file_to_sandbox of MCP, PUT …\/files\/\)/g, "(sandbox.files.write)"],
];

/** A text of the farm with the names that methods have in this package. */
function asHere(text: string): string {
  return here.reduce((text, [pattern, name]) => text.replace(pattern, name), text);
}

/** The notes of a result, of which an older farm may send none. */
function notesOf(result: { notes?: string[] }): string[] {
  return (result.notes ?? []).map(asHere);
}

/** The outcome for each package, of which an older farm may send none. */
function packagesOf(packages: InstalledOne[] | undefined): InstalledOne[] {
  return (packages ?? []).map((one) => (one.message ? { ...one, message: asHere(one.message) } : one));
}

/** A line for each package that could not be installed automatically, and for each note of the farm. */
export function remarks(result: { installed?: InstalledOne[]; notes: string[] }): string[] {
  const failed = (result.installed ?? []).filter((one) => one.status === "failed");
  return [...failed.map((one) => [`package ${one.name || one.requested}`, one.status, one.message].filter(Boolean).join(": ")), ...result.notes.map((note) => `note: ${note}`)];
}

/** The result of code; with `check` throws ResultError if it was not successful. */
export function ranCode(result: ExecuteResult, check: boolean): RunResult {
  const ran = { ...result, installed: packagesOf(result.installed), notes: notesOf(result), ok: result.exit_code === 0 && !result.error };
  if (!check || ran.ok) return ran;
  const message = result.error ? `${result.error.name}: ${result.error.value}` : `the code ended with exit code ${result.exit_code}`;
  throw new ResultError([message, ...remarks(ran)].join("\n"), ran);
}

/** The result of commands; with `check` throws ResultError if one failed. */
export function ranCommands(result: CommandResult, check: boolean): BashResult {
  const failed = result.results.find((one) => one.exit_code !== 0);
  const ran = {
    ...result,
    installed: packagesOf(result.installed),
    notes: notesOf(result),
    stdout: result.results.map((one) => one.stdout).join(""),
    stderr: result.results.map((one) => one.stderr).join(""),
    exit_code: failed?.exit_code ?? 0,
    ok: !failed,
  };
  if (check && failed) {
    const last = failed.stderr.trim().split("\n").at(-1);
    throw new ResultError([`${failed.command} ended with exit code ${failed.exit_code}${last ? `: ${last}` : ""}`, ...remarks(ran)].join("\n"), ran);
  }
  return ran;
}

/** The result of an install; with `check` throws ResultError if a package could not be installed. */
export function installed(result: InstallResult, check: boolean): PackagesResult {
  const packages = packagesOf(result.packages);
  const failed = packages.filter((one) => one.status !== "installed");
  const versions = Object.fromEntries(packages.flatMap(({ name, status, version }) => (status === "installed" ? [[name, version ?? ""]] : [])));
  const done = { ...result, packages, notes: notesOf(result), ok: failed.length === 0, versions };
  if (check && failed.length > 0) throw new ResultError([...failed.map((one) => one.message), ...remarks(done)].join("\n"), done);
  return done;
}
