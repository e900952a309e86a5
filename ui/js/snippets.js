// The same request by other means. Everything that a user typed is quoted for the language that it goes into.
import { base } from "./api.js";

// firstKey makes the first key of a farm, on its host. data is its data directory, if the command has to name it.
export const firstKey = (data) => `${data ? `SANDFARM_DATA=${shellQuote(data)} ` : ""}sandfarm key create --local --tenant default --scope admin --scope run`;

// CLI_PATH makes the program of a checkout the command of these lines.
export const CLI_PATH = "export PATH=$PWD/bin:$PATH";

const shellQuote = (text) => `'${text.replace(/'/g, "'\\''")}'`;
const pythonQuote = (text) => JSON.stringify(text).replace(/[\u007f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
const pythonBlock = (text) => (text.includes('"""') || text.includes("\\") || text.endsWith('"') ? pythonQuote(text) : `"""\n${text}"""`);

// marker is a line that the code does not have.
function marker(code) {
  let name = "CODE";
  while (code.split("\n").includes(name)) name += "_";
  return name;
}

export function snippets(body, keyless) {
  const url = `${location.origin}${base}`.replace(/\/$/, "");
  const header = keyless ? "" : ` \\\n  -H "Authorization: Bearer $SANDFARM_API_KEY"`;
  const exports = `export SANDFARM_URL=${url}${keyless ? "" : "\nexport SANDFARM_API_KEY=…"}\n`;
  const { memory_mb: memory, cpus } = body.resources || {};
  const flags = [body.language && body.language !== "python" ? ` --lang ${body.language}` : "", ...(body.packages || []).map((one) => ` --package ${shellQuote(one)}`), body.auto_install ? " --auto-install" : "", body.timeout_seconds ? ` --timeout ${body.timeout_seconds}s` : "", memory ? ` --memory ${memory}m` : "", cpus ? ` --cpus ${cpus}` : ""].join("");
  const options = [body.language && body.language !== "python" ? `language=${pythonQuote(body.language)}` : "", body.packages ? `packages=[${body.packages.map(pythonQuote).join(", ")}]` : "", body.auto_install ? "auto_install=True" : "", body.timeout_seconds ? `timeout=${body.timeout_seconds}` : "", memory ? `memory_mb=${memory}` : "", cpus ? `cpus=${cpus}` : ""].filter(Boolean);
  return [
    { name: "curl", language: "bash", text: `curl -s '${url}/v1/run?wait=60'${header} \\\n  -H 'Content-Type: application/json' \\\n  -d ${shellQuote(JSON.stringify(body))}` },
    { name: "CLI", language: "bash", text: `${exports}\nsandfarm run -${flags} <<'${marker(body.code)}'\n${body.code.replace(/\n$/, "")}\n${marker(body.code)}` },
    { name: "Python", language: "python", text: `from sandfarm import Client\n\nfarm = Client(${pythonQuote(url)}${keyless ? "" : ', api_key="…"'})\nresult = farm.run(${[pythonBlock(body.code), ...options].join(", ")})\nprint(result)` },
    { name: "MCP", language: "json", text: JSON.stringify({ mcpServers: { sandfarm: { type: "http", url: `${url}/mcp`, ...(keyless ? {} : { headers: { Authorization: "Bearer …" } }) } } }, null, 2) },
  ];
}
