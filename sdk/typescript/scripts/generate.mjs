// Makes src/schema.ts: reads the farm's OpenAPI document from standard input and prints the types of its bodies, queries and routes.
import openapiTS, { astToString } from "openapi-typescript";

const text = await new Promise((done, failed) => {
  let all = "";
  process.stdin.setEncoding("utf8").on("data", (part) => (all += part)).on("end", () => done(all)).on("error", failed);
});
const document = JSON.parse(text);

// Each query becomes a schema of its own, such as get_jobs_query, and the routes become one union.
const schemas = { ...document.components.schemas };
const routes = [];
for (const [path, item] of Object.entries(document.paths)) {
  if (!path.startsWith("/v1/") && path !== "/healthz" && path !== "/readyz") continue;
  for (const [method, operation] of Object.entries(item)) {
    routes.push(`${method.toUpperCase()} ${path}`);
    const query = (operation.parameters ?? []).filter((parameter) => parameter.in === "query");
    if (query.length === 0) continue;
    const properties = Object.fromEntries(query.map(({ name, description, schema }) => [name, { ...schema, description }]));
    schemas[`${operation.operationId.replaceAll("-", "_")}_query`] = { type: "object", properties, additionalProperties: false };
  }
}
schemas.Route = { type: "string", enum: routes.sort(), description: "method and path of a route" };

const small = { openapi: document.openapi, info: { title: "Sandfarm", version: "v1" }, paths: {}, components: { schemas } };
const made = await openapiTS(small, { alphabetize: true, defaultNonNullable: false, emptyObjectsUnknown: true, rootTypes: true, rootTypesNoSchemaPrefix: true });
const header = "// Made from the farm's OpenAPI document by `make gen`. Do not edit.\n\n";
const dropped = /^export type (paths|webhooks|operations|\$defs) = Record<string, never>;\n/gm;
process.stdout.write(header + astToString(made).replace(dropped, ""));
