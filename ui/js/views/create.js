// The form that creates a sandbox.
import { html, useState, useEffect, useRef } from "../lib.js";
import { t } from "../i18n.js";
import { post } from "../api.js";
import { usePoll } from "../data.js";
import { lines as linesOf, words, wrongOf } from "../format.js";
import { Dialog, ErrorBox, Field, Icon, useAction } from "../parts/basic.js";

const BLANK = { name: "", image: "python", network: "packages", hosts: "", memory: "", cpus: "", hours: "1", packages: "", env: "", labels: "", idle: "" };
const NO_SECRET = { name: "", host: "", header: "", value: "" };
const MORE = ["/packages", "/env", "/labels", "/idle_seconds", "/secrets"]; // fields that are folded
const FIELDS = ["/name", "/image", "/network", "/allow_hosts", "/resources/memory_mb", "/resources/cpus", "/ttl_seconds", ...MORE];

// pairs reads NAME=value lines.
const pairs = (text) => Object.fromEntries(text.split("\n").filter((line) => line.trim()).map((line) => { const [name] = line.split("=", 1); return [name.trim(), line.slice(name.length + 1).trim()]; }));

// some is an object with a field, unless its value is empty.
const some = (name, value) => (value && Object.keys(value).length ? { [name]: value } : {});

// request is the body of POST /v1/sandboxes.
function request(form, secrets) {
  const open = form.network === "allowlist";
  return {
    image: form.image, network: form.network, ttl_seconds: Math.round(Number(form.hours) * 3600),
    ...some("name", form.name), ...some("allow_hosts", open && linesOf(form.hosts)),
    ...some("resources", { ...(form.memory && { memory_mb: Number(form.memory) }), ...(form.cpus && { cpus: Number(form.cpus) }) }),
    ...some("packages", words(form.packages)), ...some("env", pairs(form.env)), ...some("labels", pairs(form.labels)),
    ...(form.idle && { idle_seconds: Math.round(Number(form.idle) * 60) }),
    ...some("secrets", open && Object.fromEntries(secrets.map(({ name, ...rest }) => [name, rest]))),
  };
}

// within says whether what is wrong is in a field.
const within = (one, field) => one.pointer === field || one.pointer.startsWith(`${field}/`);

// Create asks what a new sandbox should be. What the farm refuses is shown beside its field.
export function Create({ allowlist, onClose }) {
  const images = (usePoll("v1/images", 0).data || { items: [{ name: "python" }] }).items;
  const limits = usePoll("v1/limits", 0).data;
  const [form, setForm] = useState(BLANK);
  const [secrets, setSecrets] = useState([]);
  const { busy, error, act } = useAction();
  const node = useRef(null);
  const change = (name) => (event) => setForm({ ...form, [name]: event.target.value });
  const text = (name, rest) => html`<input type="text" spellcheck=${false} autocapitalize="off" value=${form[name]} onInput=${change(name)} ...${rest} />`;
  const number = (name, rest) => html`<input type="number" step="any" value=${form[name]} onInput=${change(name)} ...${rest} />`;
  const lines = (name, placeholder, rest) => html`<textarea rows="2" spellcheck=${false} autocapitalize="off" placeholder=${placeholder} value=${form[name]} onInput=${change(name)} ...${rest}></textarea>`;
  const problems = (error && error.errors) || [];
  const wrong = (field) => problems.filter((one) => within(one, field)).map(wrongOf);
  useEffect(() => {
    if (!error) return;
    if (problems.some((one) => MORE.some((field) => within(one, field)))) node.current.querySelector("details").open = true;
    const field = node.current.querySelector(".wrong");
    if (field) field.parentNode.querySelector("input, select, textarea, button").focus();
  }, [error]);
  const submit = (event) => {
    event.preventDefault();
    act(async () => {
      const made = await post("v1/sandboxes", request(form, secrets));
      location.hash = `#/sandboxes/${made.sandbox.id}`;
    });
  };
  const byDefault = (name) => ({ placeholder: limits ? limits[name].default : "" });
  const elsewhere = !problems.length || problems.some((one) => !FIELDS.some((field) => within(one, field)));
  return html`<${Dialog} title=${t("boxes.new")} onClose=${onClose}>
    <form class="dialog-form" ref=${node} onSubmit=${submit}>
      <${Field} label=${t("boxes.name")} wrong=${wrong("/name")}>${text("name", { autofocus: true })}<//>
      <${Field} label=${t("boxes.image")} hint=${images.filter((one) => one.name === form.image).map((one) => one.description)[0]} wrong=${wrong("/image")}>
        <select value=${form.image} onChange=${change("image")}>${images.map((one) => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}</select><//>
      <${Field} label=${t("boxes.network")} wrong=${wrong("/network")}><select value=${form.network} onChange=${change("network")}>
        <option value="packages">${t("boxes.network.packages")}</option><option value="none">${t("boxes.network.none")}</option><option value="allowlist" disabled=${!allowlist}>${t(allowlist ? "boxes.network.allowlist" : "boxes.network.off")}</option></select><//>
      ${form.network === "allowlist" && html`<${Field} label=${t("boxes.hosts")} hint=${t("boxes.hosts.hint")} wrong=${wrong("/allow_hosts")}>${lines("hosts", "api.example.com", { required: true, rows: 3 })}<//>`}
      <div class="side-by-side three">
        <${Field} label=${t("boxes.memoryMB")} wrong=${wrong("/resources/memory_mb")}>${number("memory", byDefault("memory_mb"))}<//>
        <${Field} label=${t("facts.cpus")} wrong=${wrong("/resources/cpus")}>${number("cpus", byDefault("cpus"))}<//>
        <${Field} label=${t("boxes.hours")} wrong=${wrong("/ttl_seconds")}>${number("hours", { required: true, max: limits ? limits.ttl_max_seconds / 3600 : undefined })}<//>
      </div>
      <details><summary>${t("boxes.more")}</summary><div class="dialog-form">
        <${Field} label=${t("play.packages")} hint=${t("boxes.packages.hint")} wrong=${wrong("/packages")}>${text("packages", { placeholder: "humanize pandas>=2" })}<//>
        <${Field} label=${t("boxes.env")} hint=${t("boxes.env.hint")} wrong=${wrong("/env")}>${lines("env", "MODE=fast")}<//>
        <${Field} label=${t("boxes.tags")} hint=${t("boxes.tags.hint")} wrong=${wrong("/labels")}>${lines("labels", "team=data")}<//>
        <${Field} label=${t("boxes.idle")} hint=${t("boxes.idle.hint")} wrong=${wrong("/idle_seconds")}>${number("idle")}<//>
        <${Secrets} secrets=${secrets} onChange=${setSecrets} off=${form.network !== "allowlist"} problems=${problems.filter((one) => within(one, "/secrets"))} />
      </div></details>
      ${elsewhere && html`<${ErrorBox} error=${error} />`}
      <footer><button type="submit" class="primary" disabled=${busy}>${t("boxes.create")}</button></footer>
    </form>
  <//>`;
}

// Secrets are headers for hosts, each with a name.
function Secrets({ secrets, onChange, off, problems }) {
  if (off) return html`<p class="soft small">${t("boxes.secrets.off")}</p>`;
  const pointerOf = (one, part) => `/secrets/${one.name.replaceAll("~", "~0").replaceAll("/", "~1")}${part === "name" ? "" : `/${part}`}`;
  const beside = secrets.flatMap((one) => Object.keys(NO_SECRET).map((part) => pointerOf(one, part)));
  const input = (i, part, label, rest) => {
    const pointer = pointerOf(secrets[i], part);
    const set = (event) => onChange(secrets.map((one, k) => (k === i ? { ...one, [part]: event.target.value } : one)));
    return html`<${Field} label=${label} wrong=${problems.filter((one) => one.pointer === pointer).map((one) => one.detail)}><input type="text" autocomplete="off" spellcheck=${false} autocapitalize="off" value=${secrets[i][part]} onInput=${set} ...${rest} /><//>`;
  };
  return html`<fieldset class="secrets"><legend>${t("facts.secrets")}</legend>
    <p class="soft small">${t("boxes.secrets.hint")}</p>
    ${problems.filter((one) => !beside.includes(one.pointer)).map((one) => html`<small class="wrong" role="alert">${one.detail}</small>`)}
    ${secrets.map((_, i) => html`<div class="side-by-side" key=${i}>
      ${input(i, "name", t("keys.name"), { placeholder: "GITHUB_TOKEN" })}${input(i, "host", t("egress.host"), { placeholder: "api.github.com" })}
      ${input(i, "header", t("boxes.secrets.header"), { placeholder: "Authorization: Bearer" })}${input(i, "value", t("boxes.secrets.value"), { type: "password", autocomplete: "new-password" })}
    </div>`)}
    <div><button type="button" class="small" onClick=${() => onChange([...secrets, NO_SECRET])}><${Icon} name="plus" />${t("boxes.secrets.add")}</button>
      ${secrets.length > 0 && html`<button type="button" class="quiet small" onClick=${() => onChange(secrets.slice(0, -1))}>${t("boxes.secrets.remove")}</button>`}</div>
  </fieldset>`;
}
