// What the page knows: sessions, their conversations and turns, the fleet, the window; from the stream's
// records (docs/reference/observability.md) and from snapshots.
// Invariants: every collection is bounded; what a record lacks is unknown and never guessed; a record of
// an unknown type changes nothing.

import { Turn, newThread } from "./turns.js";

const MAX_SESSIONS = 2500;
const MAX_TURNS_OF_THREAD = 500;
const MAX_TOOLS_OF_THREAD = 500;
const MAX_THREADS_OF_SESSION = 200;
const MAX_TENANTS = 500;
const MAX_WINDOW_POINTS = 2000;
const MAX_CHANGES = 60;
const MAX_LOOSE_TURNS = 500;
const REFUSED_WITHIN_S = 60;
const STOP = /^POST \/turnpike\/sessions\/(.+)\/stop$/;

export class Model {
  /** Oldest first. */
  sessions = new Map();
  turns = new Map();
  replicas = new Map();
  pools = new Map();
  tenants = new Map();
  counts = { tools: 0 };
  refusals = [];
  nowS = 0;
  /** Grows when rows appear, disappear or are named anew. */
  shape = 0;
  /** Grows with whatever is shown. */
  version = 0;
  snapshot = null;

  apply(type, record) {
    const handle = this[`on_${type}`];
    if (handle === undefined) return;
    this.version += 1;
    if (record.at_s > this.nowS) this.nowS = record.at_s;
    handle.call(this, record);
  }

  on_session_start(r) {
    const session = this.session(r.session, r.at_s, r.tenant);
    Object.assign(session, { source: r.source, confidence: r.confidence, schema: r.schema, parent: r.parent ?? session.parent });
    session.startedS = Math.min(session.startedS, r.at_s);
    this.shape += 1;
  }

  on_session_end(r) {
    const session = this.sessions.get(r.session);
    if (session === undefined) return;
    Object.assign(session, { endedS: r.at_s, endReason: r.reason, turnCount: Math.max(r.turns ?? 0, session.turnCount) });
    for (const thread of session.threads.values()) this.closeTools(thread, r.at_s);
    this.shape += 1;
  }

  on_turn_arrive(r) {
    const turn = this.turn(r.turn, r.at_s);
    Object.assign(turn, {
      arriveS: r.at_s, tenant: r.tenant, protocol: r.protocol, model: r.model, edge: r.edge ?? null, parent: r.parent ?? null,
      isStreamed: r.is_streamed !== false, source: r.source, confidence: r.confidence, bytes: r.body_bytes, messages: r.message_count, tools: r.tool_count,
    });
    if (r.session === null || turn.thread !== null) return; // no turn, or a duplicate
    const session = this.session(r.session, r.at_s, r.tenant);
    if (session.endedS !== null) session.endedS = session.endReason = null; // it goes on after all
    session.model = r.model ?? session.model;
    session.client = r.client || session.client;
    if (r.source !== "new" && (session.source === "new" || r.confidence > session.confidence)) Object.assign(session, { source: r.source, confidence: r.confidence });
    session.lastS = r.at_s;
    session.turnCount += 1;
    const thread = this.thread(session, r.thread ?? r.session);
    if (thread.turns.length === 0) {
      Object.assign(thread, { edge: r.edge ?? null, parentTurn: r.parent ?? null, firstS: r.at_s });
      this.shape += 1;
    }
    turn.thread = thread;
    turn.number = session.turnCount;
    thread.turns.push(turn);
    thread.lastS = r.at_s;
    if (thread.turns.length > MAX_TURNS_OF_THREAD) this.turns.delete(thread.turns.shift().id);
  }

  on_turn_wait(r) {
    const turn = this.turn(r.turn, r.at_s);
    turn.waits.push({ atS: r.at_s, reason: r.reason, waiting: r.waiting });
    if (turn.waits.length > 20) turn.waits.shift();
  }

  on_turn_left(r) {
    Object.assign(this.turn(r.turn, r.at_s), { outcome: "client_left", lostS: r.at_s, waitedMs: r.waited_ms });
  }

  on_turn_would_wait(r) {
    this.turn(r.turn, r.at_s).wouldWait = r.reason;
  }

  on_routing(r) {
    Object.assign(this.turn(r.turn, r.at_s), { routedS: r.at_s, replica: r.replica, reason: r.reason, waitedMs: r.waited_ms });
  }

  on_control(r) {
    const [, id] = STOP.exec(r.what) ?? [];
    if (r.outcome === 200 && this.sessions.has(id)) this.sessions.get(id).isStopped = true;
  }

  on_gpu_submit(r) {
    const turn = this.turn(r.turn, r.at_s);
    if (turn.thread !== null) turn.thread.session.isStopped = false;
    if (turn.submitS !== null) turn.attempts.push({ submitS: turn.submitS, endS: turn.endS ?? r.at_s, replica: turn.lastReplica, outcome: turn.outcome });
    Object.assign(turn, {
      submitS: r.at_s, firstS: null, endS: null, outcome: null, replica: r.replica, lastReplica: r.replica, attempt: r.attempt,
      expected: r.expected ?? null, submitted: { ...r, expected: undefined },
    });
    this.load(r.replica, 1);
  }

  on_gpu_1st_token(r) {
    this.turn(r.turn, r.at_s).firstS = r.at_s;
  }

  on_gpu_end(r) {
    const turn = this.turn(r.turn, r.at_s);
    Object.assign(turn, {
      endS: r.at_s, outcome: r.outcome, status: r.status, usage: r.usage ?? {},
    });
    this.load(r.replica, -1);
    const session = turn.thread?.session;
    if (session === undefined) return;
    session.lastS = turn.thread.lastS = r.at_s;
    const { prompt_tokens: prompt, cached_tokens: cached, output_tokens: output } = turn.usage;
    const tenant = this.tenant(session.tenant);
    tenant.servedTokens += (prompt ?? 0) - (cached ?? 0) + (output ?? 0);
    session.tokens += (prompt ?? 0) + (output ?? 0);
    if (turn.isBad) session.troubles += 1;
  }

  on_tool_num(r) {
    this.counts.tools = r.active;
  }

  on_tool_start(r) {
    const turn = this.turns.get(r.turn);
    const session = this.session(r.session, r.at_s);
    const thread = turn?.thread ?? this.mainThread(session);
    session.lastS = r.at_s;
    thread.tools.push({ startS: r.at_s, endS: null, names: r.names ?? [], turn: r.turn });
    if (thread.tools.length > MAX_TOOLS_OF_THREAD) thread.tools.shift();
  }

  on_tool_end(r) {
    const session = this.sessions.get(r.session);
    if (session === undefined) return;
    session.lastS = r.at_s;
    const turn = this.turns.get(r.turn);
    const parent = turn?.parent;
    let found = null;
    for (const thread of session.threads.values()) {
      for (let i = thread.tools.length - 1; i >= 0; i -= 1) {
        const span = thread.tools[i];
        if (span.endS !== null) continue;
        if (span.turn === parent) found = span;
        else if (found === null && r.names.some((name) => span.names.includes(name))) found = span;
      }
    }
    if (found !== null) found.endS = r.at_s;
  }

  /** What is expected to follow, at a pause. */
  on_step_predict(r) {
    this.turn(r.turn, r.at_s).predicted = r;
  }

  on_window_update(r) {
    const pool = this.pool(r.pool);
    this.addPoint(pool, r);
    const last = pool.changes.at(-1);
    if (last !== undefined && last.reason === r.reason && r.at_s - last.at_s < 60) Object.assign(last, r, { times: last.times + 1 });
    else pool.changes.push({ ...r, times: 1 });
    if (pool.changes.length > MAX_CHANGES) pool.changes.shift();
  }

  on_refusal(r) {
    const turn = this.turn(r.turn, r.at_s);
    const isNew = !turn.refused;
    Object.assign(turn, { refused: r.reason, refusedS: r.at_s, waitedMs: r.waited_ms });
    if (isNew) this.countRefusal(turn, r.tenant);
    if (isNew && turn.thread !== null) turn.thread.session.troubles += 1;
  }

  countRefusal(turn, tenant) {
    this.refusals.push({ atS: turn.refusedS, reason: turn.refused, turn: turn.id });
    this.refusals.sort((a, b) => a.atS - b.atS);
    if (this.refusals.length > 2000) this.refusals.shift();
    this.tenant(tenant).refused += 1;
  }

  on_replica(r) {
    const replica = this.replica(r.replica);
    Object.assign(replica, { state: r.state, why: r.why, changedS: r.at_s });
    if (r.state === "left") this.replicas.delete(r.replica);
  }

  session(id, atS, tenant) {
    let session = this.sessions.get(id);
    if (session === undefined) {
      session = {
        id, tenant: tenant ?? null, schema: null, client: null, source: null, confidence: null, parent: null, model: null, view: null,
        startedS: atS, lastS: atS, endedS: null, endReason: null, threads: new Map(), turnCount: 0,
        troubles: 0, tokens: 0, isStopped: false,
      };
      this.sessions.set(id, session);
      this.shape += 1;
      if (this.sessions.size > MAX_SESSIONS) this.forgetOne();
    }
    if (tenant !== undefined && session.tenant === null) session.tenant = tenant;
    return session;
  }

  forgetOne() {
    let chosen = null;
    for (const session of this.sessions.values()) {
      if (chosen === null) chosen = session;
      if (session.endedS === null) continue;
      chosen = session;
      break;
    }
    for (const thread of chosen.threads.values()) for (const turn of thread.turns) this.turns.delete(turn.id);
    this.sessions.delete(chosen.id);
  }

  thread(session, id) {
    let thread = session.threads.get(id);
    if (thread === undefined) {
      thread = newThread(id, session);
      session.threads.set(id, thread);
      this.shape += 1;
      if (session.threads.size > MAX_THREADS_OF_SESSION) this.forgetThread(session);
    }
    return thread;
  }

  /** The oldest but the first, which is the session's own. */
  forgetThread(session) {
    const [, [id, thread]] = [...session.threads].slice(0, 2);
    for (const turn of thread.turns) this.turns.delete(turn.id);
    session.threads.delete(id);
  }

  mainThread(session) {
    for (const thread of session.threads.values()) return thread;
    return this.thread(session, session.id);
  }

  turn(id, atS) {
    let turn = this.turns.get(id);
    if (turn === undefined) {
      turn = new Turn(id, atS);
      this.turns.set(id, turn);
      if (this.turns.size % MAX_LOOSE_TURNS === 0) this.forgetLoose();
    }
    return turn;
  }

  /** Requests that belong to no session, and those whose arrival was not seen, are kept for a while only. */
  forgetLoose() {
    const loose = [];
    for (const turn of this.turns.values()) if (turn.thread === null) loose.push(turn.id);
    for (const id of loose.slice(0, -MAX_LOOSE_TURNS)) this.turns.delete(id);
  }

  closeTools(thread, atS) {
    for (const span of thread.tools) span.endS ??= atS;
  }

  replica(id) {
    if (!this.replicas.has(id)) this.replicas.set(id, { id, state: "up", why: "", running: 0, changedS: null, view: null });
    return this.replicas.get(id);
  }

  load(id, change) {
    const replica = this.replica(id);
    replica.running = Math.max(0, replica.running + change);
  }

  pool(id) {
    if (!this.pools.has(id)) this.pools.set(id, { id, points: [], changes: [], view: null });
    return this.pools.get(id);
  }

  addPoint(pool, r) {
    if (!Number.isFinite(r.gpu_pressure) && !Number.isFinite(r.admitted)) return;
    const isLate = pool.points.length > 0 && r.at_s < pool.points.at(-1).at_s; // a duplicate, older than the snapshot
    pool.points.push({
      at_s: r.at_s, gpu: r.gpu_pressure, cpu: r.cpu_pressure, sessions: r.sessions ?? null, budget: r.kv_budget ?? null,
      admitted: r.admitted, demand: r.demand, waiting: r.waiting, reason: r.reason,
    });
    if (isLate) pool.points.sort((a, b) => a.at_s - b.at_s);
    if (pool.points.length > MAX_WINDOW_POINTS) pool.points.shift();
  }

  tenant(id) {
    if (!this.tenants.has(id) && this.tenants.size >= MAX_TENANTS) {
      for (const tenant of this.tenants.values()) if (tenant.views.length === 0) {
        this.tenants.delete(tenant.id);
        break;
      }
    }
    if (!this.tenants.has(id)) this.tenants.set(id, { id, servedTokens: 0, refused: 0, views: [] });
    return this.tenants.get(id);
  }

  refusedLately() {
    while (this.refusals.length > 0 && this.refusals[0].atS < this.nowS - REFUSED_WITHIN_S) this.refusals.shift();
    return this.refusals.length;
  }
}
