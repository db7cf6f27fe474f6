-- The life of a job is its stage: 0 ready, 1 scheduled (both "pending"), 2 leased, 3 done, 4 failed, 5 cancelled.
-- Each access path has a partial index, so that a waiting million costs nothing to those who look for something else.
-- Instants are microseconds since 1970 on the store's clock.

CREATE TABLE lanes (
  id INTEGER PRIMARY KEY,
  queue TEXT NOT NULL,
  tenant TEXT NOT NULL,
  ready INTEGER NOT NULL DEFAULT 0,
  scheduled INTEGER NOT NULL DEFAULT 0,
  leased INTEGER NOT NULL DEFAULT 0,
  done INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0,
  cancelled INTEGER NOT NULL DEFAULT 0,
  served_at INTEGER NOT NULL DEFAULT 0,
  UNIQUE (queue, tenant)
);
CREATE INDEX lanes_ready ON lanes (queue, served_at) WHERE ready > 0;

-- Long texts come last: SQLite reads a row from the front.
CREATE TABLE jobs (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  lane INTEGER NOT NULL REFERENCES lanes (id),
  stage INTEGER NOT NULL,
  kind TEXT NOT NULL,
  priority INTEGER NOT NULL,
  run_at INTEGER NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0,
  attempts_max INTEGER NOT NULL,
  fence INTEGER NOT NULL DEFAULT 0,
  lease_us INTEGER NOT NULL,
  timeout_us INTEGER,
  created_at INTEGER NOT NULL,
  finished_at INTEGER,
  token TEXT,
  last_token TEXT,
  owner TEXT,
  until INTEGER,
  cancel_requested INTEGER NOT NULL DEFAULT 0,
  last_error_code TEXT,
  last_error_at INTEGER,
  shard_key TEXT,
  cursor TEXT,
  progress TEXT,
  payload TEXT NOT NULL,
  result TEXT
);
CREATE INDEX jobs_ready ON jobs (lane, priority DESC, run_at) WHERE stage = 0;
CREATE INDEX jobs_scheduled ON jobs (run_at) WHERE stage = 1;
CREATE INDEX jobs_leased ON jobs (until) WHERE stage = 2;
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE stage > 2;
CREATE INDEX jobs_failed ON jobs (id) WHERE stage = 4;
CREATE INDEX jobs_to_cancel ON jobs (owner) WHERE stage = 2 AND cancel_requested = 1;

CREATE TABLE errors (
  job TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  at INTEGER NOT NULL,
  code TEXT NOT NULL,
  message TEXT NOT NULL,
  traceback TEXT NOT NULL
);
CREATE INDEX errors_of_job ON errors (job);

-- Idempotency keys live longer than the jobs they name.
CREATE TABLE keys (
  tenant TEXT NOT NULL,
  key TEXT NOT NULL,
  job TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  expires_at INTEGER NOT NULL,
  PRIMARY KEY (tenant, key)
) WITHOUT ROWID;
CREATE INDEX keys_expiring ON keys (expires_at);

CREATE TABLE schedules (
  name TEXT PRIMARY KEY,
  kind TEXT NOT NULL,
  cron TEXT NOT NULL,
  tz TEXT NOT NULL,
  missed TEXT NOT NULL,
  seen INTEGER NOT NULL,
  last_fire INTEGER,
  paused INTEGER NOT NULL DEFAULT 0
);
