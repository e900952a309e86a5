// The dashboard: who is there, where they are, and the frame around every page.
import { html, render, useState, useEffect, useRef } from "./lib.js";
import { t, speak, language, languages } from "./i18n.js";
import { get, logOut, Problem, whenLoggedOut, whenReached } from "./api.js";
import { usePoll } from "./data.js";
import { listen } from "./keys.js";
import { Dialog, ErrorBox, Icon, Loading, LOGO, Nowhere } from "./parts/basic.js";
import { Login } from "./views/login.js";
import { Playground } from "./views/playground.js";

// From here on scripts come from this folder alone, and frames hold only the pages that are made for them: 'self' in the header covers what sandboxes answer
// with on this origin, and its server does not know below which prefix the browser sees it. Policies have no form for addresses of IPv6.
const policy = Object.assign(document.createElement("meta"), {
  httpEquiv: "Content-Security-Policy",
  content: `script-src ${new URL(".", import.meta.url)}; frame-src ${["ui/frame.html", "ui/terminal.html"].map((page) => new URL(page, document.baseURI)).join(" ")} blob:`,
});
if (!location.hostname.startsWith("[")) document.head.append(policy);

// pages are loaded when they are first opened, except for the first.
const pages = {
  jobs: () => import("./views/jobs.js").then((m) => m.Jobs),
  sandboxes: () => import("./views/sandboxes.js").then((m) => m.Sandboxes),
  sandbox: () => import("./views/sandbox.js").then((m) => m.SandboxPage),
  artifacts: () => import("./views/artifacts.js").then((m) => m.ArtifactsPage),
  farm: () => import("./views/farm.js").then((m) => m.Farm),
  usage: () => import("./views/usage.js").then((m) => m.UsagePage),
  job: () => import("./views/job.js").then((m) => m.JobPage),
};

// ONE is the page of one thing of a list.
const ONE = { jobs: "job", sandboxes: "sandbox" };

// DEPTH is how many parts the addresses of a room may have.
const DEPTH = { "": 1, run: 2, jobs: 2, sandboxes: 3, artifacts: 2, farm: 2, usage: 1 };

const NAV = [["", "playground", "play"], ["jobs", "jobs", "list"], ["sandboxes", "sandboxes", "box"], ["artifacts", "artifacts", "image"], ["farm", "farm", "farm"], ["usage", "usage", "clock"]];

// theme is "light", "dark", or "" for that of the system.
function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme; else delete document.documentElement.dataset.theme;
  if (theme) localStorage.setItem("sandfarm.theme", theme); else localStorage.removeItem("sandfarm.theme");
}

const isDark = () => (document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);

// here is the place that the address names; what follows a ? belongs to its page. An address that is not well escaped names none.
function here() {
  const parts = location.hash.replace(/^#\/?/, "").split("?")[0].split("/");
  try {
    return parts.map(decodeURIComponent);
  } catch {
    return parts;
  }
}

const inPlayground = ([room]) => room === "" || room === "run";

function usePlace() {
  const [place, setPlace] = useState(here());
  useEffect(() => {
    let old = here();
    const changed = () => {
      const place = here();
      if (String(old) !== String(place) && !(inPlayground(old) && inPlayground(place))) scrollTo(0, 0); // a run has just scrolled to its output
      old = place;
      setPlace(place);
    };
    addEventListener("hashchange", changed);
    setPlace(old); // it may have changed since the first look
    return () => removeEventListener("hashchange", changed);
  }, []);
  return place;
}

// answers reports whether the farm answers at all.
const answers = () => get("readyz").then(() => true, (problem) => problem.status !== 0);

// Lazy shows a page that has yet to be loaded. What a browser says of a script that it cannot load helps nobody.
function Lazy({ name, ...props }) {
  const [page, setPage] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    let over = false;
    setPage(null);
    setError(null);
    pages[name]().then((made) => { if (!over) setPage(() => made); }, () => {
      answers(); // so that the page says how the farm is
      if (!over) setError(new Problem(0, {}));
    });
    return () => { over = true; };
  }, [name]);
  const again = async () => { if (await answers()) location.reload(); }; // browsers may remember that a script could not be loaded
  if (error) return html`<${ErrorBox} error=${error} /><p class="after"><button type="button" onClick=${again}>${t("again")}</button></p>`;
  return page ? html`<${page} ...${props} />` : html`<${Loading} />`;
}

function Page({ place, session }) {
  const [room, id, tab] = place;
  const first = useRef(true);
  useEffect(() => { // what had the focus may have gone with the page before
    if (!first.current && document.activeElement === document.body) document.getElementById("main").focus({ preventScroll: true });
    first.current = false;
  }, [room, id]);
  if (!(place.filter(Boolean).length <= DEPTH[room])) return html`<${Nowhere} />`;
  if (inPlayground(place)) return html`<${Playground} id=${id} session=${session} />`;
  const name = (id && ONE[room]) || room;
  return html`<${Lazy} key=${ONE[room] ? `${name} ${id}` : name} name=${name} id=${id} tab=${tab} session=${session} />`;
}

const WELL = 30000; // milliseconds between two looks at a farm that answers
const AWAY = 3000; // and at one that does not

// Health says whether the farm works. It looks at once when a call shows that this has changed.
function Health() {
  const [every, setEvery] = useState(WELL);
  useEffect(() => whenReached((yes) => setEvery(yes ? WELL : AWAY)), []);
  const { data, error } = usePoll("readyz", every);
  const { parts } = error || {};
  const ill = parts ? parts.redis.ok && parts.storage.ok ? "health.noWorker" : "health.ill" : "health.bad";
  return html`<span class=${`health ${error ? "bad" : data ? "good" : ""}`} role="status"><span class="dot" aria-hidden="true"></span>${t(error ? ill : "health.good")}</span>`;
}

function Help({ onClose }) {
  const rows = [["/", "keys.search"], ["j k", "keys.move"], ["Enter", "keys.open"], ["g p", "nav.playground"], ["g j", "nav.jobs"], ["g s", "nav.sandboxes"], ["g a", "nav.artifacts"], ["g f", "nav.farm"], ["g u", "nav.usage"], ["Ctrl Enter", "play.run"], ["Escape Tab", "keys.editor"], ["Ctrl-M Tab", "keys.terminal"], ["?", "keys.help"]];
  return html`<${Dialog} title=${t("keys.title")} onClose=${onClose}><dl class="shortcuts">${rows.map(([keys, what]) => html`<div><dt>${keys.split(" ").map((one) => html`<kbd>${one}</kbd> `)}</dt><dd>${t(what)}</dd></div>`)}</dl><//>`;
}

function Shell({ session, onLanguage }) {
  const place = usePlace();
  const [dark, setDark] = useState(isDark());
  const [help, setHelp] = useState(false);
  useEffect(() => listen(() => setHelp(true)), []);
  const nav = NAV.filter(([room]) => room !== "farm" || session.scopes.includes("admin"));
  const flip = () => { setTheme(dark ? "light" : "dark"); setDark(!dark); };
  return html`<div class="shell">
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>${t("skip")}</a>
    <header class="side">
      <a class="brand" href="#/"><img src=${LOGO} alt="" width="26" height="26" /><span>Sandfarm</span></a>
      <nav class="main-nav" aria-label=${t("nav.label")}>
        ${nav.map(([href, name, icon]) => html`<a key=${name} href=${`#/${href}`} aria-current=${(href ? place[0] === href : inPlayground(place)) ? "page" : undefined}><${Icon} name=${icon} /><span>${t(`nav.${name}`)}</span></a>`)}
      </nav>
      <div class="foot">
        <${Health} />
        <div class="who soft small" title=${session.key_id}>${session.keyless ? t("who.keyless") : session.tenant}<br />${session.version}</div>
        <div class="tools">
          <a class="button quiet" href="docs" title=${t("docs")} aria-label=${t("docs")}><${Icon} name="book" /></a>
          <button type="button" class="quiet" onClick=${flip} title=${t("theme")} aria-label=${t("theme")}><${Icon} name=${dark ? "sun" : "moon"} /></button>
          <button type="button" class="quiet" onClick=${() => onLanguage(languages.find((one) => one !== language()))} title=${t("language")} aria-label=${t("language")}><${Icon} name="globe" /></button>
          ${!session.keyless && html`<button type="button" class="quiet" id="logout" onClick=${logOut} title=${t("logout")} aria-label=${t("logout")}><${Icon} name="out" /></button>`}
        </div>
      </div>
    </header>
    <main id="main" tabindex="-1"><${Page} place=${place} session=${session} /></main>
    ${help && html`<${Help} onClose=${() => setHelp(false)} />`}
  </div>`;
}

function App() {
  const [session, setSession] = useState(null);
  const [error, setError] = useState(null);
  const [, setLanguage] = useState(language());
  const look = () => get("session").then((found) => { setSession(found); setError(null); }, setError);
  useEffect(() => {
    whenLoggedOut(look);
    look();
  }, []);
  const change = (name) => { speak(name); setLanguage(name); };
  if (error) return html`<main class="login"><div><${ErrorBox} error=${error} /><button type="button" onClick=${look}>${t("again")}</button></div></main>`;
  if (!session) return html`<${Loading} />`;
  if (!session.logged_in) return html`<${Login} ended=${session.key_ended} onIn=${setSession} />`;
  return html`<${Shell} key=${language()} session=${session} onLanguage=${change} />`;
}

setTheme(localStorage.getItem("sandfarm.theme") || "");
render(html`<${App} />`, document.getElementById("app"));
