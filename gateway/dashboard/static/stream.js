// The information stream: server-sent events read with fetch, so that a key can be sent with the request.
// Invariants: one connection at a time; after a break it resumes behind the last event that was seen.

const FIRST_DELAY_S = 0.5;
const MAX_DELAY_S = 15;
const SILENT_S = 45;
/** Without a byte for so long the connection is taken for dead; servers comment about every 15 s. */

/** A browser gives pages no more than that there was no answer. */
export const reasonOf = (error) => (error instanceof TypeError ? "the gateway cannot be reached" : error.message);

export class KeyRequired extends Error {}

/** Of an id of the stream, the number at each gateway: `120`, or of several as `1-120.2-88`. */
export function positionsOf(id) {
  if (id === null || id === undefined) return new Map();
  return new Map(String(id).split(".").map((part) => {
    const [gateway, number] = part.includes("-") ? part.split("-") : ["", part];
    return [gateway, Number(number)];
  }));
}

/** Whether anything of `one` is behind what `other` has. */
export const isAhead = (one, other) => [...one].some(([gateway, number]) => number > (other.get(gateway) ?? 0));

export const furthest = (one, other) =>
  new Map([...one, ...[...other].map(([gateway, number]) => [gateway, Math.max(number, one.get(gateway) ?? 0)])]);

const STORED_KEY = "turnpike-control-key";

/** Beside the page; without a password that the page's own address may carry, which `fetch` would refuse. */
const BASE = `${location.origin}${location.pathname.replace(/[^/]*$/, "")}`;

/**
 * Requests to the control listener. Where the page was served to anybody, it prompts for a key itself, which lives as
 * long as the tab; where the browser had to ask for one to get the page, the browser sends it.
 */
export class Control {
  #key = sessionStorage.getItem(STORED_KEY);
  #isBrowsersKey = false;

  setKey(key) {
    this.#key = key;
    sessionStorage.setItem(STORED_KEY, key);
  }

  /** Whether this page may change anything, by the gateway's last answer. */
  mayAct = false;

  get hasKey() {
    return this.#key !== null;
  }

  async fetch(path, { headers = {}, signal, method = "GET", body } = {}) {
    const answer = await fetch(BASE + path, {
      method,
      body,
      headers: this.#key === null ? headers : { ...headers, Authorization: `Bearer ${this.#key}` },
      signal,
      cache: "no-store",
      credentials: this.#isBrowsersKey ? "same-origin" : "omit", // else the browser, too, prompts for a password
    });
    if (answer.status !== 401 && answer.status !== 403) return answer;
    await answer.body?.cancel();
    if (this.#key === null && !this.#isBrowsersKey) {
      const page = await fetch(BASE, { method: "HEAD", cache: "no-store", credentials: "omit", signal });
      this.#isBrowsersKey = page.status === 401;
      if (this.#isBrowsersKey) return this.fetch(path, { headers, signal, method, body });
    }
    throw new KeyRequired(path);
  }

  async json(path, how) {
    const answer = await this.fetch(path, how);
    this.mayAct = answer.headers.get("x-turnpike-may-act") === "true";
    if (!answer.ok) {
      await answer.body?.cancel();
      const error = new Error(`${path} answered ${answer.status}`);
      error.status = answer.status;
      throw error;
    }
    return answer.json();
  }
}

/**
 * Calls `on.event(type, data, id)`, `on.state(state, details)`; `state`: connecting, live, broken, key. Before it
 * connects again it calls `on.isSame()`; if that is false, numbers mean something else now, and it leaves.
 */
export class Stream {
  #control;
  #on;
  #lastId = null;
  #delayS = FIRST_DELAY_S;
  #timer = 0;
  #abort = null;
  #wasLive = false;

  constructor(control, on) {
    this.#control = control;
    this.#on = on;
  }

  /** From behind `lastId`; null for what comes from now on. */
  start(lastId) {
    this.#lastId = lastId;
    this.#wasLive = false;
    this.retryNow();
  }

  retryNow() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#run(new AbortController());
  }

  async #run(abort) {
    this.#abort = abort;
    this.#on.state("connecting");
    let why = "the stream ended";
    try {
      if (this.#wasLive && !(await this.#on.isSame())) return;
      const headers = { Accept: "text/event-stream" };
      if (this.#lastId !== null) headers["Last-Event-ID"] = String(this.#lastId);
      const answer = await this.#control.fetch("events", { headers, signal: abort.signal });
      if (!answer.ok) throw new Error(`the stream answered ${answer.status}`);
      this.#wasLive = true;
      this.#on.state("live");
      await this.#read(answer.body.getReader(), abort);
    } catch (error) {
      if (abort !== this.#abort) return; // a newer connection took over
      if (error instanceof KeyRequired) return this.#on.state("key");
      why = abort.signal.aborted ? "the stream fell silent" : reasonOf(error);
    }
    if (abort !== this.#abort) return;
    this.#on.state("broken", { delayS: this.#delayS, why });
    this.#timer = setTimeout(() => this.#run(new AbortController()), this.#delayS * 1000);
    this.#delayS = Math.min(MAX_DELAY_S, this.#delayS * 2);
  }

  async #read(reader, abort) {
    const decoder = new TextDecoder();
    let rest = "";
    let silence = 0;
    try {
      for (;;) {
        silence = setTimeout(() => abort.abort(), SILENT_S * 1000);
        const { done, value } = await reader.read();
        clearTimeout(silence);
        if (done) return;
        if (abort !== this.#abort) return;
        this.#delayS = FIRST_DELAY_S;
        const blocks = (rest + decoder.decode(value, { stream: true })).split(/\r?\n\r?\n/);
        rest = blocks.pop();
        for (const block of blocks) this.#take(block);
      }
    } finally {
      clearTimeout(silence);
      reader.cancel().catch(() => {});
    }
  }

  #take(block) {
    let type = "message";
    let id = null;
    let data = "";
    for (const line of block.split(/\r?\n/)) {
      const colon = line.indexOf(":");
      if (colon <= 0) continue; // a comment, or nothing
      const value = line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
      const field = line.slice(0, colon);
      if (field === "event") type = value;
      else if (field === "id") id = value;
      else if (field === "data") data = data === "" ? value : `${data}\n${value}`;
    }
    if (id !== null) this.#lastId = id;
    if (data === "") return;
    let record;
    try {
      record = JSON.parse(data);
    } catch {
      return; // one record that cannot be read is one record less
    }
    this.#on.event(type, record, id);
  }
}
