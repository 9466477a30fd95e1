// Snapshots: the state as it is, where records show how it came about.

/** `isWhole`: sessions that it does not have are over; else only its gauges count. */
export function take(model, snapshot, { isWhole }) {
  model.version += 1;
  model.snapshot = snapshot;
  model.nowS = Math.max(model.nowS, snapshot.at_s ?? 0);
  for (const view of snapshot.replicas ?? []) {
    const replica = model.replica(view.id);
    replica.view = view;
    replica.running = view.running ?? replica.running;
    const isOut = ["ejected", "tried"].includes(replica.state);
    if (view.is_up === false && (isOut || replica.state === "up")) replica.state = "down";
    if (view.is_up === false && view.cause) replica.why = view.cause;
    if (view.is_up === true && (replica.state === "down" || (isOut && view.ejected === null))) replica.state = "up";
    if (view.is_up && view.ejected) Object.assign(replica, { state: view.ejected_until_s ? "ejected" : "tried", why: view.ejected });
    const isOff = view.is_draining ? "draining" : view.failing ? "failing" : null;
    if (view.failing) replica.why = view.failing;
    if (view.is_up && (isOff || ["draining", "failing"].includes(replica.state))) replica.state = isOff ?? "up";
  }
  if (snapshot.replicas) {
    const known = new Set(snapshot.replicas.map((view) => view.id));
    for (const id of model.replicas.keys()) if (!known.has(id)) model.replicas.delete(id);
  }
  for (const view of snapshot.pools ?? []) takePool(model, view, snapshot.at_s);
  for (const tenant of model.tenants.values()) tenant.views = [];
  for (const view of snapshot.tenants ?? []) model.tenant(view.id).views.push(view);
  model.counts.tools = snapshot.active_tools ?? model.counts.tools;
  if (isWhole) takeSessions(model, snapshot);
}

function takePool(model, view, atS) {
  const pool = model.pool(view.id);
  pool.view = view;
  const lastS = pool.points.at(-1)?.at_s ?? -Infinity;
  for (const update of view.updates ?? []) if (update.at_s > lastS) model.on_window_update(update);
  model.addPoint(pool, { ...view, at_s: atS, sessions: view.window });
}

function takeSessions(model, snapshot) {
  const known = new Set();
  for (const view of [...(snapshot.sessions ?? [])].reverse()) {
    known.add(view.id);
    const session = model.session(view.id, view.started_s, view.tenant);
    Object.assign(session, {
      source: view.source, confidence: view.confidence, schema: view.schema, client: view.client || null, isStopped: view.state === "stopped", parent: view.parent ?? null, view, endedS: null,
      startedS: Math.min(session.startedS, view.started_s), lastS: Math.max(session.lastS, view.last_seen_s ?? 0),
      turnCount: Math.max(session.turnCount, view.turns ?? 0),
    });
    (view.last_turns ?? []).forEach((of, i, all) => takeTurn(model, session, of, session.turnCount - all.length + 1 + i));
    Object.assign(session, { troubles: view.troubles ?? session.troubles, tokens: (view.prompt_tokens ?? 0) + (view.output_tokens ?? 0) });
  }
  const isAll = known.size >= (snapshot.session_count ?? 0);
  for (const session of model.sessions.values()) {
    if (!isAll || session.endedS !== null || known.has(session.id)) continue;
    Object.assign(session, { endedS: session.lastS, endReason: "unseen" });
    for (const thread of session.threads.values()) model.closeTools(thread, session.lastS);
  }
  for (const turn of model.turns.values()) if (!turn.isOver && turn.thread !== null) lose(turn, snapshot, known);
  model.shape += 1;
}

/** A turn whose end fell into a gap ends where it was last seen. */
function lose(turn, snapshot, known) {
  const session = turn.thread.session;
  const mayLive = known.has(session.id) && ["generating", "waiting"].includes(session.view?.state);
  const isListed = mayLive && (session.view.last_turns ?? []).some((of) => of.turn === turn.id);
  if (!(mayLive && (isListed || session.view.last_turns === undefined)) && turn.arriveS < snapshot.at_s) {
    turn.lostS = turn.firstS ?? turn.submitS ?? turn.arriveS;
  }
}

function takeTurn(model, session, of, number) {
  const isNew = !model.turns.has(of.turn);
  const turn = model.turn(of.turn, of.arrived_s);
  Object.assign(turn, {
    arriveS: of.arrived_s, submitS: of.submitted_s, firstS: of.first_token_s, isStreamed: of.is_streamed !== false, tenant: session.tenant, model: of.model,
    edge: of.edge, parent: of.parent, replica: of.replica, reason: of.reason, waitedMs: of.queue_ms, outcome: of.outcome,
    status: of.status, refused: of.refusal, number: turn.number ?? number,
    endS: of.outcome === "refused" ? null : of.ended_s, refusedS: of.outcome === "refused" ? of.ended_s : null,
    usage: { prompt_tokens: of.prompt_tokens, cached_tokens: of.cached_tokens, output_tokens: of.output_tokens },
  });
  if (of.wait_reason !== null && turn.waits.length === 0) turn.waits.push({ atS: of.arrived_s, reason: of.wait_reason });
  if (!isNew) return;
  if (turn.refused) model.countRefusal(turn, session.tenant);
  session.model = of.model ?? session.model;
  const thread = model.thread(session, of.thread ?? session.id);
  if (thread.turns.length === 0) Object.assign(thread, { edge: of.edge, parentTurn: of.parent, firstS: of.arrived_s });
  turn.thread = thread;
  thread.turns.push(turn);
  thread.turns.sort((a, b) => a.arriveS - b.arriveS);
  thread.lastS = Math.max(thread.lastS, of.ended_s ?? of.arrived_s);
  if ((of.tools ?? []).length > 0 && of.ended_s !== null) {
    thread.tools.push({ startS: of.ended_s, endS: of.tools_ended_s, names: of.tools, turn: of.turn });
    thread.tools.sort((a, b) => a.startS - b.startS);
  }
}
