// Colours of terminals (ANSI, SGR) as elements. What is no colour is left out; what is not understood is shown as nothing.
import { html } from "./lib.js";

const SEQUENCE = /\u001b\[([0-9;:]*)([A-Za-z])|\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)|\u001b[()][A-Z0-9]|\u001b./g;

function apply(style, codes) {
  const list = codes === "" ? [0] : codes.split(/[;:]/).map(Number);
  let next = { ...style };
  for (let i = 0; i < list.length; i += 1) {
    const code = list[i];
    if (code === 0) next = {};
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 3) next.italic = true;
    else if (code === 4) next.underline = true;
    else if (code === 22) { next.bold = false; next.dim = false; }
    else if (code === 23) next.italic = false;
    else if (code === 24) next.underline = false;
    else if (code >= 30 && code <= 37) next.fg = code - 30;
    else if (code >= 90 && code <= 97) next.fg = code - 90 + 8;
    else if (code === 39) next.fg = undefined;
    else if (code >= 40 && code <= 47) next.bg = code - 40;
    else if (code >= 100 && code <= 107) next.bg = code - 100 + 8;
    else if (code === 49) next.bg = undefined;
    else if (code === 38 || code === 48) {
      const colour = list[i + 1] === 5 ? list[i + 2] : undefined;
      if (colour !== undefined && colour < 16) next[code === 38 ? "fg" : "bg"] = colour;
      i += list[i + 1] === 2 ? 4 : 2;
    }
  }
  return next;
}

function classes(style) {
  const out = [];
  if (style.bold) out.push("a-bold");
  if (style.dim) out.push("a-dim");
  if (style.italic) out.push("a-italic");
  if (style.underline) out.push("a-under");
  if (style.fg !== undefined) out.push(`a-f${style.fg}`);
  if (style.bg !== undefined) out.push(`a-b${style.bg}`);
  return out.join(" ");
}

// returns draws what a terminal would keep of lines that were written over after a carriage return.
function overwritten(text) {
  if (!text.includes("\r")) return text;
  return text.split("\n").map((line) => { // an expression takes the square of a line's length
    let end = line.length;
    while (end > 0 && line[end - 1] === "\r") end--;
    const last = line.lastIndexOf("\r", end - 1);
    return line.slice(last + 1, end);
  }).join("\n");
}

// ansi makes elements of text.
export function ansi(text) {
  const plain = overwritten(text);
  if (!plain.includes("\u001b")) return plain;
  const out = [];
  let style = {};
  let from = 0;
  const push = (piece) => {
    if (!piece) return;
    const name = classes(style);
    out.push(name ? html`<span class=${name}>${piece}</span>` : piece);
  };
  for (const match of plain.matchAll(SEQUENCE)) {
    push(plain.slice(from, match.index));
    if (match[2] === "m") style = apply(style, match[1]);
    from = match.index + match[0].length;
  }
  push(plain.slice(from));
  return out;
}
