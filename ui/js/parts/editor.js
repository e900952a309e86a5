// An editor for code: a textarea over its own text in colours.
import { html, useRef, useLayoutEffect } from "../lib.js";
import { highlight } from "../highlight.js";

// indent is what the next line begins with.
function indent(before, language) {
  const line = before.slice(before.lastIndexOf("\n") + 1);
  const space = line.match(/^[ \t]*/)[0];
  return language === "python" && /:\s*(#.*)?$/.test(line) ? `${space}    ` : space;
}

function insert(area, text) {
  // execCommand keeps the undo history of the textarea, which setRangeText does not
  if (!document.execCommand("insertText", false, text)) {
    area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
    area.dispatchEvent(new Event("input", { bubbles: true }));
  }
}

// replace replaces all text of an editor, which Ctrl-Z brings back.
export function replace(area, text) {
  area.focus();
  area.select();
  insert(area, text);
}

// Editor edits `value`. onRun is called for Ctrl-Enter, and for Shift-Enter.
export function Editor({ value, language, onInput, onRun, label, rows = 12, describedBy }) {
  const area = useRef(null);
  const shown = useRef(null);
  useLayoutEffect(() => {
    if (shown.current && area.current) { shown.current.scrollTop = area.current.scrollTop; shown.current.scrollLeft = area.current.scrollLeft; }
  });
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.shiftKey)) {
      event.preventDefault();
      onRun();
    } else if (event.key === "Enter") {
      event.preventDefault();
      insert(event.target, `\n${indent(event.target.value.slice(0, event.target.selectionStart), language)}`);
    } else if (event.key === "Tab" && !event.shiftKey && !event.ctrlKey && !event.altKey && !event.target.dataset.leave) {
      event.preventDefault();
      insert(event.target, "    ");
    } else if (event.key === "Escape") {
      event.target.dataset.leave = "yes"; // the next Tab leaves the editor
      return;
    }
    delete event.target.dataset.leave;
  };
  return html`<div class="editor" style=${{ "--rows": rows }}>
    <pre ref=${shown} aria-hidden="true"><code>${highlight(value, language)}${"\n "}</code></pre>
    <textarea ref=${area} aria-label=${label} aria-describedby=${describedBy} spellcheck=${false} autocapitalize="off" autocomplete="off" wrap="off" value=${value}
      onInput=${(event) => onInput(event.target.value)} onKeyDown=${keys}
      onScroll=${(event) => { if (!shown.current) return; shown.current.scrollTop = event.target.scrollTop; shown.current.scrollLeft = event.target.scrollLeft; }}></textarea>
  </div>`;
}

// Code shows code.
export const Code = ({ code, language }) => html`<pre class="code" tabindex="0"><code>${highlight(code.trimEnd().replace(/^\n+/, ""), language)}</code></pre>`;
