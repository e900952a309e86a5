// The way in: a key, once.
import { html, useState, useEffect, useRef } from "../lib.js";
import { t } from "../i18n.js";
import { call, base } from "../api.js";
import { firstKey } from "../snippets.js";
import { ErrorBox, Field, Icon, LOGO, useAction, useTitle } from "../parts/basic.js";

// Login asks for a key. ended: the browser is logged in with one that is no longer valid.
export function Login({ ended, onIn }) {
  const [key, setKey] = useState("");
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  const { busy, error, act } = useAction();
  useTitle(t("login.submit"));
  const submit = (event) => {
    event.preventDefault();
    act(async () => onIn(await call("POST", "session", { body: { key: key.trim(), path: base } })));
  };
  return html`<main class="login">
    <form onSubmit=${submit}>
      <img src=${LOGO} alt="" width="48" height="48" />
      <h1>Sandfarm</h1>
      ${ended ? html`<p role="alert">${t("login.ended")}</p>` : html`<p class="soft">${t("login.intro")}</p>`}
      <${Field} label=${t("login.key")}><input ref=${field} type="password" name="key" autocomplete="current-password" required value=${key} onInput=${(event) => setKey(event.target.value)} /><//>
      <button type="submit" class="primary" disabled=${busy || !key.trim()}><${Icon} name="key" />${t("login.submit")}</button>
      <${ErrorBox} error=${error} title=${t(error && error.status === 401 ? "login.invalid" : "login.failed")} />
      <p class="soft small">${t("login.hint")} <code>sandfarm key create</code>${t("login.first")} <code>${firstKey()}</code></p>
    </form>
  </main>`;
}
