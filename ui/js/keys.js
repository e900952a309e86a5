// The keyboard: / to search, j and k to move, Enter to open, g and a letter to go somewhere, ? for help.
const list = () => [...document.querySelectorAll("[data-row]")];

function move(step) {
  const rows = list();
  if (!rows.length) return;
  const at = rows.findIndex((row) => row === document.activeElement || row.contains(document.activeElement));
  const next = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + step))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

const PLACES = { p: "#/", j: "#/jobs", s: "#/sandboxes", a: "#/artifacts", f: "#/farm", u: "#/usage" };

// listen calls help for the key "?". It returns how to stop.
export function listen(help) {
  let waiting = 0;
  const heard = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog, .xterm")) return;
    if (waiting && PLACES[event.key]) {
      clearTimeout(waiting);
      waiting = 0;
      location.hash = PLACES[event.key];
      return;
    }
    const search = document.querySelector("input[type=search]");
    switch (event.key) {
      case "/": if (search) { event.preventDefault(); search.focus(); search.select(); } break;
      case "j": move(1); break;
      case "k": move(-1); break;
      case "g": waiting = setTimeout(() => { waiting = 0; }, 1200); break;
      case "?": help(); break;
      default:
    }
  };
  addEventListener("keydown", heard);
  return () => removeEventListener("keydown", heard);
}
