// The libraries, under one roof: preact, its hooks, and htm, which makes elements of template literals. Text in a template is always text.
import { h, render, Fragment, createContext } from "./lib/preact.js";
import htm from "./lib/htm.js";

export const html = htm.bind(h);
export { h, render, Fragment, createContext };
export { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useReducer, useContext } from "./lib/hooks.js";
