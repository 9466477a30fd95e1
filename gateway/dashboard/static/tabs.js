// Which view is shown. The page's address says it behind its #: nothing, `graphs`, `history?…` or `session=ID`; so
// it can be passed on, and gone back from.

import { el } from "./dom.js";

const TABS = ["sessions", "graphs", "history", "session"];

export class Tabs {
  #on;

  /** `on.shown(tab, about)`: `about` is what else the address says, as URLSearchParams. */
  constructor(on) {
    this.#on = on;
    for (const tab of TABS) {
      el(`tab-${tab}`).addEventListener("click", () => tab !== "session" && this.#go(tab));
      el(`tab-${tab}`).addEventListener("keydown", (event) => this.#key(tab, event));
    }
    window.addEventListener("hashchange", () => this.route());
    window.addEventListener("popstate", () => location.hash === "" && this.route());
  }

  /** Shows what the address says. */
  route() {
    const hash = location.hash.slice(1);
    const [named] = hash.split(/[?=]/);
    const tab = TABS.includes(named) ? named : "sessions";
    for (const name of TABS) {
      el(`tab-${name}`).setAttribute("aria-selected", String(name === tab));
      el(`tab-${name}`).tabIndex = name === tab ? 0 : -1;
      el(`view-${name}`).hidden = name !== tab;
    }
    el("session-tools").hidden = tab !== "sessions";
    el("tab-session").hidden = tab !== "session";
    document.body.classList.toggle("looks-back", tab === "history" || tab === "session");
    this.#on.shown(tab, new URLSearchParams(hash.slice(tab === "session" ? 0 : tab.length + 1)));
  }

  /** There, or back to the sessions, with the keyboard. */
  toggle(tab) {
    this.#go(el(`view-${tab}`).hidden ? tab : "sessions", { isFocused: true });
  }

  #go(tab, { isFocused = false } = {}) {
    window.history.pushState(null, "", tab === "sessions" ? location.pathname + location.search : `#${tab}`);
    this.route();
    if (isFocused) el(`tab-${tab}`).focus();
  }

  #key(tab, event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined || event.shiftKey) return;
    const shown = TABS.slice(0, -1);
    this.#go(shown[(Math.max(0, shown.indexOf(tab)) + step + shown.length) % shown.length], { isFocused: true });
    event.preventDefault();
  }
}
