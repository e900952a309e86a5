import { SandfarmError } from "./errors.js";

/** Values of a query; those that are undefined are left out, and arrays repeat their name. */
export type Query = object;

/** The address of a farm, without `/v1` and slashes at its end. */
export function addressOf(given: string): string {
  const text = given.trim().replace(/\/+$/, "").replace(/\/v1$/, "").replace(/\/+$/, "");
  let url: URL | undefined;
  try {
    url = new URL(text);
  } catch {
    // reported below
  }
  if (!url || !/^https?:$/.test(url.protocol)) throw wrong(`the farm's address ${JSON.stringify(given)} must look like http://host:port`);
  if (url.search || url.hash || url.username) throw wrong("the farm's address must not have a query, a fragment or a user");
  return text;
}

/** A path of a route with values for the names in braces. */
export function pathOf(template: string, params: Record<string, string>): string {
  return template.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = params[name] ?? "";
    const parts = name === "path" ? value.split("/") : [value];
    // `fetch` would remove elements of dots, and so reach another route.
    if (parts.some((part, n) => part === "." || part === ".." || (part === "" && (n === 0 || n < parts.length - 1)))) {
      throw wrong(`${name} is ${JSON.stringify(value)}: an id or a name in it is empty or consists of dots`);
    }
    return parts.map(encodeURIComponent).join("/");
  });
}

/** A query with its question mark; empty if it has no values. */
export function queryOf(query: Query): string {
  const out = new URLSearchParams();
  for (const [name, value] of Object.entries(query) as [string, unknown][]) {
    for (const one of Array.isArray(value) ? (value as unknown[]) : [value]) {
      if (one !== undefined && one !== null) out.append(name, String(one));
    }
  }
  const text = out.toString();
  return text && `?${text}`;
}

/** A path relative to the workspace, without `.` and `..`. */
export function workspacePath(path: string): string {
  const out: string[] = [];
  for (const part of path.split("/")) {
    if (part === "..") {
      if (out.pop() === undefined) throw wrong(`${JSON.stringify(path)} is outside the workspace`);
    } else if (part !== "" && part !== ".") out.push(part);
  }
  if (path.startsWith("/") && out.shift() !== "workspace") {
    throw wrong(`${JSON.stringify(path)} is outside the workspace: use a relative path, one below /workspace, or \`fs\``);
  }
  return out.join("/");
}

/** An absolute path without its first slash, and without `.` and `..`; a relative one is in the workspace. */
export function absolutePath(path: string): string {
  const out: string[] = [];
  for (const part of (path.startsWith("/") ? path : `/workspace/${path}`).split("/")) {
    if (part === "..") out.pop();
    else if (part !== "" && part !== ".") out.push(part);
  }
  return out.join("/");
}

function wrong(message: string): SandfarmError {
  return new SandfarmError(message, { code: "invalid" });
}
