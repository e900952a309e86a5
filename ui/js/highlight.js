// Colours of code, by a list of expressions for each language: enough to read by, nothing that needs a parser.
import { html } from "./lib.js";

const words = (list) => `\\b(?:${list.split(" ").join("|")})\\b`;

const PYTHON = [
  ["s", "(?:\\b[rbfuRBFU]{1,2})?(?:\"\"\"[\\s\\S]*?(?:\"\"\"|$)|'''[\\s\\S]*?(?:'''|$)|\"(?:\\\\.|[^\"\\\\\\n])*\"?|'(?:\\\\.|[^'\\\\\\n])*'?)"],
  ["c", "#[^\\n]*"],
  ["k", words("and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield match case")],
  ["v", words("True False None self")],
  ["b", words("print len range open str int float list dict set tuple sum min max sorted enumerate zip map filter any all abs round isinstance type input super display")],
  ["n", "\\b(?:0[xob][0-9a-fA-F_]+|\\d[\\d_]*(?:\\.\\d+)?(?:e[+-]?\\d+)?j?)\\b"],
  ["d", "^[ \\t]*@[\\w.]+"],
];
const SCRIPT = [
  ["s", "`(?:\\\\.|[^`\\\\])*`?|\"(?:\\\\.|[^\"\\\\\\n])*\"?|'(?:\\\\.|[^'\\\\\\n])*'?"],
  ["c", "//[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$)"],
  ["k", words("async await break case catch class const continue default delete do else export extends finally for from function if import in instanceof let new of return switch throw try typeof var void while yield")],
  ["v", words("true false null undefined this")],
  ["n", "\\b\\d[\\d_]*(?:\\.\\d+)?(?:e[+-]?\\d+)?n?\\b"],
];
const SHELL = [
  ["s", "\"(?:\\\\.|[^\"\\\\])*\"?|'[^']*'?"],
  ["c", "(?<=^|\\s)#[^\\n]*"],
  ["k", words("if then else elif fi for in do done while until case esac function export return exit set")],
  ["v", "\\$\\{?[\\w@#?*!-]+\\}?"],
  ["b", "(?<=^|[\\n;&|] {0,8})[\\w./-]+(?= |$)"],
];

const LANGUAGES = new Map([["python", PYTHON], ["javascript", SCRIPT], ["typescript", SCRIPT], ["json", SCRIPT], ["bash", SHELL], ["sh", SHELL], ["shell", SHELL]]
  .map(([name, rules]) => [name, { names: rules.map((r) => r[0]), match: new RegExp(rules.map((r) => `(${r[1]})`).join("|"), "gm") }]));

const MOST = 60000; // characters; longer code has no colours

// highlight makes elements of code.
export function highlight(code, language) {
  const rules = LANGUAGES.get(language);
  if (!rules || code.length > MOST) return code;
  const out = [];
  let from = 0;
  for (const match of code.matchAll(rules.match)) {
    if (!match[0]) continue;
    if (match.index > from) out.push(code.slice(from, match.index));
    const kind = rules.names[match.slice(1).findIndex((group) => group !== undefined)];
    out.push(html`<span class=${`h-${kind}`}>${match[0]}</span>`);
    from = match.index + match[0].length;
  }
  out.push(code.slice(from));
  return out;
}
