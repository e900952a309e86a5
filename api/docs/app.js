// Renders openapi.json as a page on which every operation can be tried. No libraries, nothing from elsewhere. Addresses are relative, so a
// prefix in front of the farm does not matter.
"use strict";

let spec;

// make builds an element: attributes, then children, which are text unless they are nodes.
function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== undefined) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function resolve(schema) {
  while (schema && schema.$ref) schema = schema.$ref.slice(2).split("/").reduce((at, part) => at[part], spec);
  return schema || {};
}

// nonNull takes the "or null" off a schema.
function nonNull(schema) {
  return schema.anyOf ? schema.anyOf.find((option) => option.type !== "null") : schema;
}

function typeName(schema) {
  const plain = nonNull(schema);
  const orNull = plain !== schema && schema.anyOf.some((option) => option.type === "null") ? " or null" : "";
  if (plain.$ref) return plain.$ref.split("/").pop() + orNull;
  if (plain.type === "array") return `array of ${typeName(plain.items || {})}${orNull}`;
  if (plain.additionalProperties && plain.additionalProperties.type) return `object of ${plain.additionalProperties.type}${orNull}`;
  return (Array.isArray(plain.type) ? plain.type.join(" or ") : plain.type || "any") + orNull;
}

function bounds(schema) {
  const out = [];
  if (schema.enum) out.push(schema.enum.join(" | "));
  if (schema.minimum !== undefined || schema.maximum !== undefined) out.push(`${schema.minimum ?? "…"} to ${schema.maximum ?? "…"}`);
  if (schema.maxLength) out.push(`at most ${schema.maxLength} bytes`);
  if (schema.maxItems) out.push(`at most ${schema.maxItems}`);
  if (schema.default !== undefined && schema.default !== "") out.push(`default ${schema.default}`);
  return out.join(" · ");
}

function fieldTable(schema) {
  const whole = resolve(schema);
  const rows = Object.entries(whole.properties || {}).map(([name, field]) => make("tr", null,
    make("td", null, make("code", null, name), (whole.required || []).includes(name) && whole.additionalProperties === false ? make("span", { class: "must" }, "required") : null),
    make("td", null, make("span", { class: "type" }, typeName(field)), " ", field.description || "", bounds(field) ? make("div", { class: "type" }, bounds(field)) : null)));
  return make("table", null, make("tbody", null, ...rows));
}

// example makes a starting body: the required fields and a few others.
function example(schema) {
  const whole = resolve(schema);
  const out = {};
  for (const name of whole.required || []) {
    const field = resolve(nonNull(whole.properties[name]));
    if (name === "code") out[name] = "print('hello')";
    else if (name === "jobs") out[name] = [{ kind: "run", code: "print(1)" }];
    else if (field.type === "array") out[name] = name === "packages" ? ["numpy"] : [];
    else out[name] = field.type === "integer" ? 0 : "";
  }
  if (whole.properties && whole.properties.command && whole.properties.commands) out.command = "echo hello";
  return JSON.stringify(out, null, 2);
}

function operationNode(path, method, operation) {
  const body = make("div", { class: "body" });
  const node = make("details", { class: "operation", id: operation.operationId },
    make("summary", null, make("span", { class: `method ${method}` }, method.toUpperCase()), make("span", { class: "path" }, path), make("span", { class: "summary" }, operation.summary)), body);
  node.addEventListener("toggle", () => {
    if (node.open && !body.childElementCount) fill(body, path, method, operation);
  });
  return node;
}

function fill(body, path, method, operation) {
  if (operation.description) body.append(make("p", null, operation.description));
  if (operation.parameters) {
    body.append(make("h3", null, "Parameters"), make("table", null, make("tbody", null, ...operation.parameters.map((p) => make("tr", null,
      make("td", null, make("code", null, p.name), p.required ? make("span", { class: "must" }, "required") : null),
      make("td", null, make("span", { class: "type" }, `${p.in}, ${typeName(p.schema)}`), " ", p.description || "", bounds(p.schema) ? make("div", { class: "type" }, bounds(p.schema)) : null))))));
  }
  const content = operation.requestBody ? operation.requestBody.content : {};
  if (content["application/json"]) body.append(make("h3", null, "Body"), fieldTable(content["application/json"].schema));
  else if (operation.requestBody) body.append(make("h3", null, "Body"), make("p", null, Object.keys(content).join(" or ")));
  body.append(make("h3", null, "Answers"));
  const rows = Object.entries(operation.responses).map(([status, response]) => {
    const answer = resolve(response);
    const [media, shape] = Object.entries(answer.content || {})[0] || [];
    return make("tr", null, make("td", { class: "status" }, status === "default" ? "errors" : status),
      make("td", null, answer.description, media ? make("span", { class: "type" }, ` — ${media === "application/json" ? typeName(shape.schema) : media}`) : null));
  });
  body.append(make("table", null, make("tbody", null, ...rows)), tryForm(path, method, operation, content));
}

function tryForm(path, method, operation, content) {
  const inputs = [];
  const form = make("form", { class: "try" });
  for (const p of operation.parameters || []) {
    if (p.name === "Prefer" || p.name === "Idempotency-Key" || p.name === "Last-Event-ID") continue;
    const input = make("input", { id: `${operation.operationId}-${p.name}`, placeholder: p.description || "", required: p.required === true, spellcheck: "false" });
    if (p.name === "wait") input.value = "30";
    inputs.push([p, input]);
    form.append(make("div", { class: "field" }, make("label", { for: input.id }, p.name), input));
  }
  let text = null;
  let file = null;
  if (content["application/json"]) {
    text = make("textarea", { "aria-label": "JSON body", spellcheck: "false" });
    text.value = operation.requestBody.required ? example(content["application/json"].schema) : "";
    form.append(text);
  } else if (operation.requestBody) {
    file = make("input", { type: "file", "aria-label": "file", multiple: Boolean(content["multipart/form-data"]) });
    form.append(file);
  }
  const output = make("div");
  const send = make("button", { type: "submit" }, "Send");
  const stop = make("button", { type: "button", class: "plain", hidden: true }, "Stop");
  form.append(make("div", { class: "buttons" }, send, stop), output);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const control = new AbortController();
    send.disabled = true;
    stop.hidden = false;
    stop.onclick = () => control.abort();
    try {
      await run(path, method, inputs, text, file, output, control.signal);
    } catch (error) {
      output.append(make("p", { class: "bad" }, control.signal.aborted ? "Stopped." : `No answer: ${error.message}`));
    } finally {
      send.disabled = false;
      stop.hidden = true;
    }
  });
  return form;
}

async function run(path, method, inputs, text, file, output, signal) {
  const query = new URLSearchParams();
  const headers = {};
  for (const [p, input] of inputs) {
    if (input.value === "") continue;
    if (p.in === "path") path = path.replace(`{${p.name}}`, p.name === "path" ? input.value.split("/").map(encodeURIComponent).join("/") : encodeURIComponent(input.value));
    else if (p.in === "header") headers[p.name] = input.value;
    else query.append(p.name, input.value);
  }
  const key = document.getElementById("key").value;
  if (key) headers.Authorization = `Bearer ${key}`;
  let body;
  if (text && text.value.trim()) {
    headers["Content-Type"] = "application/json";
    body = text.value;
  } else if (file && file.multiple) {
    body = new FormData();
    for (const one of file.files) body.append("file", one, one.name);
  } else if (file) {
    body = file.files[0];
  }
  const started = performance.now();
  const target = path + (query.size ? `?${query}` : "");
  output.replaceChildren(make("p", { class: "type" }, `${method.toUpperCase()} ${target}`));
  const answer = await fetch(target.slice(1), { method: method.toUpperCase(), headers, body, signal, redirect: "manual" });
  const line = make("p", { class: answer.ok ? "ok" : "bad" }, `${answer.status || "redirect"} ${answer.statusText} · ${Math.round(performance.now() - started)} ms`);
  const pre = make("pre");
  output.append(line, pre);
  if (answer.type === "opaqueredirect") {
    line.className = "ok";
    pre.textContent = "The answer redirects to a presigned link. Browsers do not show its address to scripts: open this path in a tab, or use curl -L.";
    return;
  }
  const kind = answer.headers.get("content-type") || "";
  if (kind.startsWith("text/event-stream")) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) pre.append(part.value);
    return;
  }
  const received = await answer.text();
  if (/json/.test(kind)) {
    pre.textContent = JSON.stringify(JSON.parse(received), null, 2);
  } else {
    pre.textContent = received.slice(0, 200000) || "(no body)";
  }
}

async function begin() {
  const intro = document.getElementById("intro");
  try {
    spec = await (await fetch("openapi.json")).json();
  } catch (error) {
    intro.textContent = `The document cannot be read: ${error.message}`;
    return;
  }
  document.getElementById("key-form").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("version").textContent = spec.info.version;
  intro.replaceChildren(spec.info.description, " The document itself is ", make("a", { href: "openapi.json" }, "/openapi.json"), ".");
  const nav = document.getElementById("nav");
  const main = document.getElementById("main");
  for (const tag of spec.tags) {
    nav.append(make("h2", null, tag.name));
    main.append(make("h2", { id: `tag-${tag.name}` }, tag.name));
    for (const [path, item] of Object.entries(spec.paths)) {
      for (const [method, operation] of Object.entries(item)) {
        if (!operation.tags.includes(tag.name)) continue;
        main.append(operationNode(path, method, operation));
        nav.append(make("a", { href: `#${operation.operationId}`, title: `${method.toUpperCase()} ${path}`, onclick: () => { document.getElementById(operation.operationId).open = true; } }, operation.summary));
      }
    }
  }
  const wanted = document.getElementById(location.hash.slice(1));
  if (wanted && wanted.tagName === "DETAILS") {
    wanted.open = true;
    wanted.scrollIntoView();
  }
}

begin();
