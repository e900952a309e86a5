// A terminal in a sandbox: a shell on a terminal of the farm, by the WebSocket of docs/rest.md, "Attach". It goes on after a break, and after a
// reload as long as the shell runs: it hangs up some time after its window was closed.
import { t } from "./i18n.js";

const policy = Object.assign(document.createElement("meta"), { httpEquiv: "Content-Security-Policy", content: `script-src ${new URL(".", import.meta.url)}` });
if (!location.hostname.startsWith("[")) document.head.append(policy); // as in main.js
const root = new URL("..", location.href);
const box = decodeURIComponent(location.hash.slice(1));
const processes = new URL(`v1/sandboxes/${encodeURIComponent(box)}/processes`, root);
const status = document.getElementById("status");
const say = (text) => { status.textContent = text; };

const STDIN = 1, RESIZE = 3, STDOUT = 17, STDERR = 18, DROPPED = 19, EXIT = 20, TAKEN = 21, REFUSED = 22;
const GRACE = 300; // seconds that a shell without a window stays for a reload, or for who comes back
const MOST = 32 * 1024; // bytes of input in one message
const SHELL = "command -v bash >/dev/null && exec bash -l; exec sh";

const terminal = new window.Terminal({
  cursorBlink: true, scrollback: 5000, fontSize: 13, fontFamily: 'ui-monospace, "SF Mono", Menlo, Consolas, monospace', screenReaderMode: false,
  theme: { background: "#191611", foreground: "#ebe5d9", cursor: "#e2a75c", selectionBackground: "#5a4a2e" },
});
const fit = new window.FitAddon.FitAddon();
terminal.loadAddon(fit);
terminal.open(document.getElementById("terminal"));
fit.fit();
terminal.focus();

let over = false;

// Tab is the shell's. Ctrl-M, which shells take for Enter, lets the next Tab leave the terminal.
let leaves = false;
function leave(yes) {
  if (leaves === yes) return;
  leaves = yes;
  if (!over) say(yes ? t("terminal.leaves") : "");
}
terminal.attachCustomKeyEventHandler((event) => {
  if (event.key === "Tab") return !leaves;
  if (event.key.toLowerCase() !== "m" || !event.ctrlKey || event.shiftKey || event.altKey || event.metaKey) return true;
  if (event.type === "keydown") leave(!leaves);
  event.preventDefault();
  return false;
});
terminal.textarea.addEventListener("blur", () => leave(false));

async function call(method, url, body) {
  const answer = await fetch(url, { method, credentials: "same-origin", headers: body ? { "Content-Type": "application/json" } : {}, body: body && JSON.stringify(body) });
  const text = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(text.detail || `HTTP ${answer.status}`);
  return text;
}

const memory = `sandfarm.terminal.${box}`;

// shell is the shell of the last visit of this tab, or a new one.
async function shell() {
  const old = sessionStorage.getItem(memory);
  if (old) {
    const found = await call("GET", `${processes}/${encodeURIComponent(old)}`).catch(() => null);
    if (found && found.state === "running") return found;
  }
  const made = await call("POST", processes, { command: SHELL, name: "terminal", pty: { cols: terminal.cols, rows: terminal.rows }, hangup_seconds: GRACE, env: { TERM: "xterm-256color" } });
  sessionStorage.setItem(memory, made.id);
  return made;
}

const writer = Array.from(crypto.getRandomValues(new Uint8Array(12)), (n) => n.toString(16).padStart(2, "0")).join("");
let after = 0n;
let taken = 0n;
let waiting = []; // pieces of input from `taken` on that the process may not have
let socket = null;
let tries = 0;

function frame(kind, bytes) {
  const out = new Uint8Array(1 + bytes.length);
  out[0] = kind;
  out.set(bytes, 1);
  return out;
}

function resize() {
  fit.fit();
  if (socket && socket.readyState === WebSocket.OPEN) socket.send(frame(RESIZE, new Uint8Array([terminal.cols >> 8, terminal.cols & 255, terminal.rows >> 8, terminal.rows & 255])));
}

function type(text) {
  if (over) return;
  const all = typeof text === "string" ? new TextEncoder().encode(text) : text;
  for (let i = 0; i < all.length; i += MOST) {
    const piece = all.slice(i, i + MOST);
    waiting.push(piece);
    if (socket && socket.readyState === WebSocket.OPEN) socket.send(frame(STDIN, piece));
  }
}

// took forgets input that the process has.
function took(number) {
  let known = Number(number - taken);
  taken = number;
  while (known > 0 && waiting.length) {
    if (waiting[0].length <= known) known -= waiting.shift().length;
    else { waiting[0] = waiting[0].slice(known); known = 0; }
  }
}

function hear(data) {
  const view = new DataView(data);
  const kind = view.getUint8(0);
  if (kind === STDOUT || kind === STDERR) {
    after = view.getBigUint64(1);
    terminal.write(new Uint8Array(data, 9));
  } else if (kind === DROPPED) after = view.getBigUint64(1);
  else if (kind === TAKEN) took(view.getBigUint64(1));
  else if (kind === EXIT) {
    over = true;
    const exit = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 9)));
    sessionStorage.removeItem(memory);
    say(t("terminal.over", { n: exit.exit_code }));
    terminal.onKey(({ key }) => { if (key === "\r") location.reload(); });
  } else if (kind === REFUSED) say(JSON.parse(new TextDecoder().decode(new Uint8Array(data, 1))).detail);
}

function attach(id) {
  const url = new URL(`${processes}/${encodeURIComponent(id)}/attach`);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  url.search = new URLSearchParams({ ...(after ? { after: String(after) } : {}), writer, written: String(taken) });
  socket = new WebSocket(url);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => {
    tries = 0;
    say("");
    for (const piece of waiting) socket.send(frame(STDIN, piece));
    resize();
  };
  socket.onmessage = (event) => hear(event.data);
  socket.onclose = (event) => {
    if (over) return;
    if (event.code === 1000 || event.code === 4404 || event.code === 4409 || event.code === 4401) {
      say(event.reason || String(event.code));
      over = true;
      return;
    }
    tries += 1;
    say(t("play.reconnect"));
    setTimeout(() => attach(id), Math.min(10000, 300 * 2 ** tries));
  };
}

terminal.onData(type);
terminal.onBinary((text) => type(Uint8Array.from(text, (c) => c.charCodeAt(0))));
new ResizeObserver(resize).observe(document.getElementById("terminal"));
shell().then((process) => attach(process.id), (error) => say(error.message));
