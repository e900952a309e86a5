// Builds dist: the package as ES modules and as CommonJS, each with its types.
import { execFileSync } from "node:child_process";
import { rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const folder = new URL("..", import.meta.url);
const tsc = createRequire(import.meta.url).resolve("typescript/lib/tsc.js");
rmSync(new URL("dist", folder), { recursive: true, force: true });
for (const [name, type, options] of [
  ["esm", "module", []],
  ["cjs", "commonjs", ["--module", "CommonJS", "--moduleResolution", "Node10"]],
]) {
  execFileSync(process.execPath, [tsc, "-p", ".", "--outDir", `dist/${name}`, ...options], { cwd: folder, stdio: "inherit" });
  writeFileSync(new URL(`dist/${name}/package.json`, folder), `${JSON.stringify({ type })}\n`);
}
