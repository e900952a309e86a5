// The words of the dashboard, by the browser's language or by the user's choice.
import en from "./words/en.js";
import zh from "./words/zh.js";

const dictionaries = { en, zh };
const chosen = localStorage.getItem("sandfarm.language");
let current = dictionaries[chosen] ? chosen : (navigator.languages || [navigator.language]).map((one) => one.slice(0, 2).toLowerCase()).find((one) => dictionaries[one]) || "en";
document.documentElement.lang = current;

export const languages = Object.keys(dictionaries);
export const language = () => current;
export const locale = () => (current === "zh" ? "zh-CN" : /^en(-[A-Za-z0-9]+)*$/.test(navigator.language) ? navigator.language : "en"); // on a machine without a locale it is "en-US@posix", which Intl refuses

// speak changes the language, here and at the next visit.
export function speak(name) {
  current = name;
  localStorage.setItem("sandfarm.language", name);
  document.documentElement.lang = name;
}

// t is a sentence in the current language, with {names} replaced. {name|one|more} is the word that fits the number of the name: {n} {n|job|jobs}.
export function t(key, values) {
  const text = dictionaries[current][key] ?? en[key] ?? key;
  return values ? text.replace(/\{(\w+)(?:\|([^|}]*)\|([^|}]*))?\}/g, (whole, name, one, more) => (more === undefined ? values[name] ?? whole : String(values[name]) === "1" ? one : more)) : text;
}
