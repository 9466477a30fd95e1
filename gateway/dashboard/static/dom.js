// Elements and figures as text. Nothing here, or anywhere on this page, parses strings as markup.

import { GLOSSARY } from "./glossary.js";

const TERMS = new Set(["dt", "b", "h2", "h3"]);

/** An element whose text the glossary has explains it (terms.js). */
export function explained(element) {
  const term = element.textContent.trim().toLowerCase();
  if (!Object.hasOwn(GLOSSARY, term)) return element;
  element.dataset.term = term;
  element.tabIndex = 0;
  return element;
}

/** An element; `props` are properties, or attributes where the name has a dash or is `role`. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name === "dataset") Object.assign(element.dataset, value);
    else if (name.includes("-") || name === "role" || name === "scope" || name === "for") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return TERMS.has(tag) || props.scope === "col" || /^(meter-name|k-)/.test(props.className ?? "") ? explained(element) : element;
}

/** Sets the text only where it changed: most ticks change little. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replaces the children of `parent` unless `key`, which stands for what they show, is that of the last call. */
export function show(parent, key, make) {
  if (parent.shownKey === key) return;
  parent.shownKey = key;
  const focused = parent.contains(document.activeElement) ? document.activeElement.dataset.term : undefined;
  parent.replaceChildren(...[make()].flat());
  if (focused !== undefined) parent.querySelector(`[data-term="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

export const el = (id) => document.getElementById(id);

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(seconds < 0.995 ? 2 : 1)} s`;
  if (seconds < 99.5) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  return `${Math.floor(seconds / 3600)} h ${String(Math.floor((seconds % 3600) / 60)).padStart(2, "0")} min`;
}

export function count(number) {
  if (!Number.isFinite(number)) return "–";
  const size = Math.abs(number);
  if (size < 1000) return String(Math.round(number * 10) / 10);
  if (size < 99950) return `${(number / 1e3).toFixed(1)}k`;
  if (size < 999500) return `${Math.round(number / 1e3)}k`;
  return `${(number / 1e6).toFixed(size < 1e7 ? 2 : 1)}M`;
}

export const plural = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

/** Without what differs after each start of the gateway. */
export const shownTenant = (tenant) => (tenant?.startsWith("anonymous-") ? "anonymous" : tenant);

export const percent = (share) => (Number.isFinite(share) ? `${Math.round(share * 100)} %` : "–");

/** Of a session's row. A sum of 0 may come of an engine that does not say. */
export const cachedShare = (row) => (row.cached_tokens ? percent(row.cached_tokens / row.prompt_tokens) : "not reported");

/** What usages cost, as a text; null without a price. `prices`: as the settings have them, by model. */
export function costOf(usages, prices) {
  let [sum, isPriced] = [0, false];
  for (const { model, prompt_tokens: prompt, cached_tokens: cached, output_tokens: output } of usages) {
    const price = prices?.[model] ?? prices?.["*"];
    if (price === undefined || !Number.isFinite(prompt)) continue;
    const hit = Math.min(cached ?? 0, prompt);
    sum += ((prompt - hit) * price.input + hit * (price.cached_input ?? price.input) + (output ?? 0) * price.output) / 1e6;
    isPriced = true;
  }
  return isPriced ? String(Number(sum.toPrecision(2))) : null;
}

export function clock(atS, { seconds = true } = {}) {
  const date = new Date(atS * 1000);
  const two = (n) => String(n).padStart(2, "0");
  const hm = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return seconds ? `${hm}:${two(date.getSeconds())}` : hm;
}

/** `behind_others` → `behind others`. */
export const words = (name) => String(name).replaceAll("_", " ").replaceAll("-", " ");

/** A value of a field, by what its name says of its unit. */
export function fieldValue(name, value) {
  if (value === null || value === undefined) return "unknown";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") {
    if (name.endsWith("at_s")) return clock(value);
    if (name.endsWith("_ms")) return duration(value / 1000);
    if (name.endsWith("_s")) return duration(value);
    if (name.endsWith("_tokens") || name === "tokens") return `${count(value)} tokens`;
    if (name.endsWith("_bytes")) return `${count(value)} bytes`;
    if (/share|confidence|probability|hit/.test(name)) return percent(value);
    return Number.isInteger(value) ? String(value) : String(Math.round(value * 1000) / 1000);
  }
  if (Array.isArray(value)) return value.length ? value.map((one) => fieldValue(name, one)).join(", ") : "none";
  if (typeof value === "object") return Object.entries(value).map(([k, v]) => `${fieldName(k)} ${fieldValue(k, v)}`).join(", ");
  return String(value);
}

/** A field's name without its unit. */
export function fieldName(name) {
  return words(name.replace(/_(ms|s|tokens|bytes)$/, ""));
}
