// The page: reads the stream into the model, and paints what changed, a frame at a time.

import { showCounters } from "./counters.js";
import { DetailPanel } from "./detail.js";
import { askForKey, askToStop, showKeys } from "./dialogs.js";
import { clock, duration, el, h, setText, show } from "./dom.js";
import { FleetPanel } from "./fleet.js";
import { GraphsView } from "./graphs.js";
import { HistoryView } from "./history.js";
import { Model } from "./model.js";
import { showOutcome } from "./outcome.js";
import { SessionPage } from "./session.js";
import { take } from "./snapshot.js";
import { Control, KeyRequired, Stream, furthest, isAhead, positionsOf, reasonOf } from "./stream.js";
import { Tabs } from "./tabs.js";
import { TenantsPanel } from "./tenants.js";
import { explainTerms } from "./terms.js";
import { Timeline } from "./timeline.js";
import { Waterfall, showLegend } from "./waterfall.js";
import { WindowPanel } from "./window.js";

const DATA_EVERY_MS = 120;
const PANELS_EVERY_MS = 500;
const GAUGES_EVERY_MS = 3000;
const LARGE_MS = 150;
/** After a snapshot that takes so long the next comes later. */
const GAUGES = "snapshot?sessions=0";
const SNAPSHOT_TRIES = 10;
const THEMES = ["auto", "light", "dark"];

const model = new Model();
const control = new Control();
const timeline = new Timeline();
const calm = matchMedia("(prefers-reduced-motion: reduce)");
let link = { state: "connecting" };
let heldEvents = null;
let seen = new Map();
let began;
/** When the gateway did. */
let clockOffsetS = 0;
let frozenS = null;

// Painting: at once for the person, in a while for what happens.

let frame = 0;
let timer = 0;
let panelsMs = -Infinity;

function soon() {
  if (frame === 0) frame = requestAnimationFrame(draw);
}

function later() {
  if (frame !== 0 || timer !== 0) return;
  const passing = timeline.isFollowing ? waterfall.patienceMs : 1000;
  timer = setTimeout(() => {
    timer = 0;
    soon();
  }, calm.matches ? 1000 : Math.max(DATA_EVERY_MS, Math.min(1000, passing)));
}

function happened() {
  if (frame !== 0 || isDue) return;
  isDue = true;
  setTimeout(() => {
    isDue = false;
    soon();
  }, calm.matches ? 1000 : DATA_EVERY_MS);
}
let isDue = false;

/** The gateway's clock, extrapolated; it stands still while the link is down. */
function nowS() {
  return frozenS ?? Math.max(model.nowS, Date.now() / 1000 + clockOffsetS);
}

function draw(nowMs) {
  frame = 0;
  const now = nowS();
  if (!el("view-sessions").hidden) waterfall.paint(nowMs, now);
  else if (!el("view-session").hidden) sessionPage.paint(nowMs);
  if (nowMs - panelsMs > PANELS_EVERY_MS) {
    panelsMs = nowMs;
    fleet.paint(now);
    windowPanel.paint(now);
    tenants.paint();
    showCounters(model);
    showOutcome(model.snapshot);
    detail.paint();
  }
  el("follow").setAttribute("aria-pressed", String(timeline.isFollowing));
  if (link.state === "live" && model.sessions.size > 0) later();
}

const repaintAll = () => {
  panelsMs = -Infinity;
  soon();
};

// What there is on the page.

const detail = new DetailPanel(el("detail"), model, control, {
  closed() {
    const from = el("view-session").hidden ? waterfall : sessionPage.waterfall;
    waterfall.openTurn = null;
    el("stage").classList.remove("with-detail");
    if (from !== null) {
      from.openTurn = null;
      from.focusRow();
    }
    soon();
  },
});
const waterfall = new Waterfall(model, timeline, {
  root: el("waterfall"), rows: el("rows"), rowsIn: el("rows-in"), bars: el("bars"), axis: el("axis"), tip: el("tip"),
}, {
  open: (turn, how) => openTurn(waterfall, turn, how),
  stop(session) {
    if (control.mayAct) askToStop(session, ({ isCancelled }) => stop(session, isCancelled));
  },
  announce: (text) => setText(el("announcement"), text),
  moved: soon,
  changed: soon,
  listed({ rows, sessions }) {
    fitOnce();
    empty(rows, sessions);
  },
});
function openTurn(of, turn, how) {
  of.openTurn = turn;
  el("stage").classList.add("with-detail");
  detail.open(turn, how);
  soon();
}

const sessionPage = new SessionPage(el("view-session"), control, {
  open: (turn, how) => openTurn(sessionPage.waterfall, turn, how),
  announce: (text) => setText(el("announcement"), text), key: () => sayLink("key"), changed: soon, prices: async () => (model.snapshot ?? await control.json(GAUGES)).prices,
});
const history = new HistoryView(el("view-history"), control, {
  changed: (hash) => window.history.replaceState(null, "", hash), key: () => sayLink("key"),
});
const fleet = new FleetPanel(model);
const tenants = new TenantsPanel(model);
const windowPanel = new WindowPanel(model, repaintAll);
const graphs = new GraphsView(el("view-graphs"), control);

async function stop(session, isCancelled) {
  const body = JSON.stringify({ in_flight: isCancelled ? "cancel" : "finish" });
  let announcement = `Session ${session.id} is stopped for an hour.`;
  try {
    await control.json(`sessions/${encodeURIComponent(session.id)}/stop`, { method: "POST", body });
  } catch (error) {
    announcement = `Session ${session.id} was not stopped: ${reasonOf(error)}.`;
    el("alert").replaceChildren(h("span", {}, announcement));
    el("alert").hidden = false;
  }
  setText(el("announcement"), announcement);
  waterfall.focusRow();
}

let isFitted = false;

/** A short history is shown whole, once; after that the person decides. */
function fitOnce() {
  if (isFitted || waterfall.rows.length === 0) return;
  isFitted = true;
  const firstS = Math.min(...waterfall.rows.map((row) => row.session.startedS));
  timeline.spanS = Math.min(120, Math.max(30, (nowS() - firstS) * 1.2));
}

function empty(rows, sessions) {
  const { filter, show: which } = waterfall.view;
  const box = el("empty");
  box.hidden = rows > 0;
  const isFiltered = model.sessions.size > 0;
  const listen = model.snapshot?.listen ?? null;
  const address = (listen ?? "http://0.0.0.0:8080").replace(/\/\/(0\.0\.0\.0|\[::\])/, `//${location.hostname || "127.0.0.1"}`);
  show(box, `${isFiltered} ${filter} ${which} ${address} ${link.state}`, () => {
    if (isFiltered) {
      const clear = h("button", { type: "button" }, "Show all");
      clear.addEventListener("click", () => {
        el("filter").value = "";
        el("show").value = "all";
        Object.assign(waterfall.view, { filter: "", show: "all" });
        relist();
      });
      return [h("p", {}, "No session is like that."), clear];
    }
    if (link.state !== "live") return h("p", {}, "No data from the gateway yet.");
    return [h("p", { className: "empty-title" }, "No session yet"), h("p", {}, "Point an agent at ", h("code", {}, `${address}/v1`), " and it appears here."),
      h("p", { className: "dim" }, "OpenAI clients: ", h("code", {}, "OPENAI_BASE_URL"), ". Anthropic clients: ", h("code", {}, "ANTHROPIC_BASE_URL"), ", without ", h("code", {}, "/v1"), "."
        + (listen ? "" : " Where the gateway listens is in the first line that it prints."))];
  });
  el("rows").setAttribute("aria-label", `Sessions over time: ${sessions}`);
}

function relist() {
  waterfall.relist();
  soon();
}

// The link to the gateway.

function sayLink(state, { delayS, why } = {}) {
  link = { state, delayS, why };
  const box = el("link");
  box.dataset.state = state;
  const texts = { connecting: "connecting", live: "live", broken: "not connected", key: "a key is needed" };
  setText(el("link-text"), texts[state]);
  const alert = el("alert");
  if (state === "broken") {
    frozenS ??= nowS();
    const again = h("button", { type: "button" }, "Retry now");
    again.addEventListener("click", () => (model.snapshot === null ? begin() : stream.retryNow()));
    alert.replaceChildren(h("span", {}, `The stream broke (${why}). What you see is as of ${clock(frozenS)}. Trying again in ${duration(delayS)}.`), again);
    alert.hidden = false;
  } else if (state === "live") {
    frozenS = null;
    alert.hidden = true;
  } else if (state === "key") askForKey(control, () => (begin(), tabs.route()));
  waterfall.relist();
  repaintAll();
}

/** What of the gateway itself fails: a certificate, the store, a file. */
function sayFailing(failing) {
  if (link.state !== "live") return;
  const alert = el("alert");
  alert.replaceChildren(h("span", {}, `The gateway itself fails: ${failing.join("; ")}.`));
  alert.hidden = failing.length === 0;
}

/** A gateway that began anew counts from 1 again: what is shown is taken from a snapshot then. */
async function isSame() {
  const { began_s: beganS } = await control.json(GAUGES);
  if (beganS === began) return true;
  begin();
  return false;
}

const stream = new Stream(control, {
  state: sayLink,
  isSame,
  event(type, record, id) {
    const at = positionsOf(id);
    if (type === "gap") return reload(at);
    if (heldEvents !== null) {
      if (heldEvents.length < 100000) heldEvents.push([type, record, at]);
      return;
    }
    apply(type, record, at);
    happened();
  },
});

function apply(type, record, at) {
  if (at.size !== 0 && !isAhead(at, seen)) return; // the snapshot had it already
  seen = furthest(seen, at);
  model.apply(record.type ?? type, record);
  if (Number.isFinite(record.at_s)) clockOffsetS = Math.max(clockOffsetS, record.at_s - Date.now() / 1000);
}

/** Behind a gap the state comes from a snapshot; what the stream brings meanwhile is kept back until it is there. */
async function reload(at) {
  const isFirst = heldEvents === null;
  heldEvents ??= [];
  if (!isFirst) return;
  try {
    let snapshot = await control.json("snapshot");
    for (let again = 0; isAhead(at, positionsOf(snapshot.seq)) && again < SNAPSHOT_TRIES; again += 1) {
      await new Promise((done) => setTimeout(done, 500)); // it was made before the gap, for somebody else
      snapshot = await control.json("snapshot");
    }
    takeSnapshot(snapshot, at);
  } catch (error) {
    if (error instanceof KeyRequired) return sayLink("key");
    // what is shown has a hole then, and goes on
  }
  const held = heldEvents;
  heldEvents = null;
  for (const event of held) apply(...event);
  repaintAll();
}

function takeSnapshot(snapshot, leastSeen = new Map()) {
  el("waterfall").classList.toggle("may-act", control.mayAct);
  began = snapshot.began_s;
  seen = snapshot.seq === undefined ? leastSeen : positionsOf(snapshot.seq);
  clockOffsetS = (snapshot.at_s ?? Date.now() / 1000) - Date.now() / 1000;
  take(model, snapshot, { isWhole: true });
}

let beginAfterS = 0.5;
async function begin() {
  clearTimeout(begin.timer);
  sayLink("connecting");
  try {
    takeSnapshot(await control.json("snapshot"));
    beginAfterS = 0.5;
    stream.start(model.snapshot.seq ?? null);
    gauges();
  } catch (error) {
    if (error instanceof KeyRequired) return sayLink("key");
    sayLink("broken", { delayS: beginAfterS, why: reasonOf(error) });
    begin.timer = setTimeout(begin, beginAfterS * 1000);
    beginAfterS = Math.min(15, beginAfterS * 2);
  }
}

/** What is in no record: how full the replicas are, what tenants are entitled to. Not while nobody looks. */
function gauges() {
  let everyMs = GAUGES_EVERY_MS;
  clearTimeout(gauges.timer);
  const ask = async () => {
    if (!document.hidden && link.state === "live") {
      const beganMs = performance.now();
      try {
        const seen = await control.json(GAUGES);
        take(model, seen, { isWhole: false });
        sayFailing(seen.failing ?? []);
        happened();
      } catch (error) {
        if (error instanceof KeyRequired) return sayLink("key");
      }
      everyMs = performance.now() - beganMs > LARGE_MS ? Math.min(30000, everyMs * 2) : GAUGES_EVERY_MS;
    }
    gauges.timer = setTimeout(ask, everyMs);
  };
  gauges.timer = setTimeout(ask, everyMs);
}

// Controls and keys.

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  localStorage.setItem("turnpike-theme", theme);
  el("theme").textContent = `Theme: ${theme}`;
  el("theme").setAttribute("aria-label", `Theme: ${theme === "auto" ? "as the system" : theme}`);
  restyle();
}

function restyle() {
  waterfall.restyle();
  windowPanel.restyle();
  repaintAll();
}

const nextTheme = () => setTheme(THEMES[(THEMES.indexOf(localStorage.getItem("turnpike-theme") ?? "auto") + 1) % THEMES.length]);

const tabs = new Tabs({
  shown(tab, about) {
    detail.close();
    if (tab === "graphs") graphs.load();
    else if (tab === "history") history.load(about);
    if (tab === "session") sessionPage.load(about.get("session"));
    else sessionPage.leave();
    soon();
  },
});

const zoom = (factor) => {
  if (!el("view-session").hidden) return sessionPage.zoom(factor);
  timeline.zoom(factor, timeline.width / 2, nowS());
  soon();
};
const pan = (share) => {
  if (!el("view-session").hidden) return sessionPage.pan(share);
  timeline.pan(share * timeline.width);
  soon();
};
const followLive = () => {
  timeline.isFollowing = !timeline.isFollowing;
  soon();
};
const fit = () => {
  if (!el("view-session").hidden) return sessionPage.fit();
  let firstS = Infinity;
  for (const row of waterfall.rowsInView) firstS = Math.min(firstS, row.thread?.firstS ?? row.session.startedS);
  timeline.isFollowing = true;
  if (Number.isFinite(firstS)) timeline.fit(firstS, nowS());
  soon();
};
const SHORTCUTS = {
  "?": showKeys, "+": () => zoom(1 / 1.6), "=": () => zoom(1 / 1.6), "-": () => zoom(1.6), 0: fit, l: followLive, t: nextTheme, g: () => tabs.toggle("graphs"), h: () => tabs.toggle("history"),
  "/": () => el("filter").focus(),
};

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input, select, textarea") || document.querySelector("dialog[open]") !== null;
  if (event.key === "Escape" && event.target === el("filter")) {
    el("filter").blur();
    waterfall.focusRow();
  } else if (event.key === "Escape" && !isTyping) detail.close();
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.shiftKey && event.key.startsWith("Arrow")) {
    if (event.key === "ArrowLeft") pan(-0.2);
    else if (event.key === "ArrowRight") pan(0.2);
    else return;
  } else if (Object.hasOwn(SHORTCUTS, event.key.toLowerCase())) SHORTCUTS[event.key.toLowerCase()]();
  else return;
  event.preventDefault();
});

explainTerms();
showLegend(el("legend"));
el("filter").addEventListener("input", (event) => {
  waterfall.view.filter = event.target.value;
  relist();
});
for (const name of ["show", "order"]) el(name).addEventListener("change", (event) => {
  waterfall.view[name] = event.target.value;
  relist();
});
el("zoom-in").addEventListener("click", () => zoom(1 / 1.6));
el("zoom-out").addEventListener("click", () => zoom(1.6));
el("fit").addEventListener("click", fit);
el("follow").addEventListener("click", followLive);
el("theme").addEventListener("click", nextTheme);
el("help").addEventListener("click", showKeys);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) repaintAll();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  waterfall.focusRow();
});

setTheme(THEMES.includes(localStorage.getItem("turnpike-theme")) ? localStorage.getItem("turnpike-theme") : "auto");
if (location.hash !== "") tabs.route();
begin();
