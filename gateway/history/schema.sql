-- Of `turnpike history`. Times are Unix seconds; `gateway` is the URL, or the file, that a row came from.

CREATE TABLE gateways (
  gateway TEXT PRIMARY KEY,
  position TEXT NOT NULL,        -- behind the last record that is stored
  records INTEGER NOT NULL,
  unreadable INTEGER NOT NULL,   -- lines that were no records of this version
  gaps INTEGER NOT NULL          -- notices of records that were lost
) STRICT;

CREATE TABLE replicas (
  gateway TEXT,
  replica TEXT,
  running INTEGER NOT NULL,      -- turns, behind the last record
  PRIMARY KEY (gateway, replica)
) STRICT, WITHOUT ROWID;

CREATE TABLE turns (
  turn TEXT PRIMARY KEY,
  gateway TEXT NOT NULL,
  session TEXT,
  tenant TEXT,
  model TEXT,
  replica TEXT,
  arrived_s REAL NOT NULL,
  ended_s REAL NOT NULL,         -- the newest step; the turn has ended if it has an outcome
  queue_ms REAL,
  first_token_ms REAL,           -- from the last submission
  run_ms REAL,                   -- from the last submission to the end
  outcome TEXT,                  -- as gpu_end has it, or refused, or left
  token_ms REAL,                 -- expected there for each token that has to be computed
  rest_ms REAL,                  -- expected there from the first token to the end
  loads TEXT,                    -- JSON: turns that each replica ran when this one was sent
  records TEXT NOT NULL          -- lines of JSON
) STRICT;
CREATE INDEX turns_by_session ON turns (session, arrived_s);
CREATE INDEX turns_by_end ON turns (ended_s, outcome);

CREATE TABLE sessions (
  session TEXT PRIMARY KEY,
  gateway TEXT NOT NULL,
  tenant TEXT,
  parent TEXT,
  source TEXT,
  confidence REAL,
  schema TEXT,
  model TEXT,
  started_s REAL NOT NULL,
  last_s REAL NOT NULL,
  ended_s REAL,
  end_reason TEXT,
  turns INTEGER NOT NULL DEFAULT 0,
  troubles INTEGER NOT NULL DEFAULT 0,     -- turns that were refused, or did not come to their end
  prompt_tokens INTEGER NOT NULL DEFAULT 0,
  cached_tokens INTEGER NOT NULL DEFAULT 0,
  output_tokens INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX sessions_by_last ON sessions (last_s);
CREATE INDEX sessions_by_parent ON sessions (parent) WHERE parent IS NOT NULL;

CREATE TABLE windows (
  gateway TEXT NOT NULL,
  at_s REAL NOT NULL,
  record TEXT NOT NULL
) STRICT;
CREATE INDEX windows_by_time ON windows (at_s);
