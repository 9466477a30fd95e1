-- What each record of the stream (`gateway/domain/records.py`) changes. The parameters are its fields, those of its
-- `expected` and `usage` among them; `:gateway` is where it came from, `:line` the record as a line of JSON.

-- on turn: every record that names one
INSERT INTO turns (turn, gateway, session, arrived_s, ended_s, records)
VALUES (:turn, :gateway, :session, :at_s, :at_s, :line) ON CONFLICT DO UPDATE SET
  records = CASE WHEN length(records) < 65536 THEN records || excluded.records ELSE records END;

-- on turn_arrive
UPDATE turns SET tenant = :tenant, model = :model WHERE turn = :turn;
INSERT INTO sessions (session, gateway, tenant, model, started_s, last_s, turns)
SELECT :session, :gateway, :tenant, :model, :at_s, :at_s, 1 WHERE :session IS NOT NULL
ON CONFLICT DO UPDATE SET tenant = excluded.tenant, model = coalesce(excluded.model, model),
  last_s = excluded.last_s, turns = turns + 1, ended_s = NULL, end_reason = NULL;

-- on routing
UPDATE turns SET replica = :replica, queue_ms = :waited_ms, ended_s = :at_s, loads = (
  SELECT json_group_object(replica, running) FROM replicas WHERE gateway = :gateway) WHERE turn = :turn;

-- on gpu_submit
INSERT INTO replicas VALUES (:gateway, :replica, 1) ON CONFLICT DO UPDATE SET running = running + 1;
UPDATE turns SET token_ms = :first_token_ms / (:prompt_tokens - :cached_tokens),
  rest_ms = max(0.0, :completion_ms - :first_token_ms) WHERE turn = :turn AND :prompt_tokens > :cached_tokens;

-- on gpu_1st_token
UPDATE turns SET first_token_ms = :launch_delay_ms, ended_s = :at_s WHERE turn = :turn;

-- on gpu_end: after one that failed another replica is tried, or the turn is refused
UPDATE replicas SET running = max(0, running - 1) WHERE gateway = :gateway AND replica = :replica;
UPDATE turns SET run_ms = :duration_ms, ended_s = :at_s,
  outcome = coalesce(outcome, nullif(:outcome, 'failed')) WHERE turn = :turn;
UPDATE sessions SET last_s = :at_s, troubles = troubles + (:outcome <> 'finished'),
  prompt_tokens = prompt_tokens + coalesce(:prompt_tokens, 0),
  cached_tokens = cached_tokens + coalesce(:cached_tokens, 0),
  output_tokens = output_tokens + coalesce(:output_tokens, 0)
WHERE session = :session AND :outcome <> 'failed';

-- on refusal, turn_left
UPDATE turns SET queue_ms = :waited_ms, ended_s = :at_s,
  outcome = coalesce(outcome, iif(:type = 'refusal', 'refused', 'left')) WHERE turn = :turn;
UPDATE sessions SET last_s = :at_s, troubles = troubles + 1 WHERE session = :session;

-- on session_start
INSERT INTO sessions (session, gateway, tenant, parent, source, confidence, schema, started_s, last_s)
VALUES (:session, :gateway, :tenant, :parent, :source, :confidence, :schema, :at_s, :at_s)
ON CONFLICT DO UPDATE SET tenant = excluded.tenant, parent = excluded.parent, source = excluded.source,
  confidence = excluded.confidence, schema = excluded.schema;

-- on session_end
UPDATE sessions SET ended_s = :at_s, last_s = :at_s, end_reason = :reason WHERE session = :session;

-- on session_held, session_admitted, session_stop: kept with the session's newest turn
UPDATE turns SET records = records || :line WHERE outcome IS NULL AND turn = (
  SELECT turn FROM turns WHERE session = :session AND arrived_s <= :at_s ORDER BY arrived_s DESC LIMIT 1);

-- on window_update
INSERT INTO windows VALUES (:gateway, :at_s, :line);

-- on replica
INSERT INTO replicas SELECT :gateway, :replica, 0 WHERE :state = 'up' ON CONFLICT DO UPDATE SET running = 0;
DELETE FROM replicas WHERE gateway = :gateway AND replica = :replica AND :state IN ('down', 'left');
