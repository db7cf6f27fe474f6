-- Jobs, their failed attempts and their idempotency keys.
-- Each access path has a partial index, so that a million waiting jobs cost nothing where other jobs are looked up.

-- SQLite reads a row from the front, so long texts come last.
CREATE TABLE jobs (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  lane INTEGER NOT NULL REFERENCES lanes (id),
  -- ready, scheduled, leased, done, failed or cancelled. A pending job is ready, or scheduled for later.
  -- No CHECK: it costs 3 % of every submission and settlement, and only the statements in ../sql write this column.
  state TEXT NOT NULL,
  kind TEXT NOT NULL,
  priority INTEGER NOT NULL,
  run_at INTEGER NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0,
  attempts_max INTEGER NOT NULL,
  fence INTEGER NOT NULL DEFAULT 0,
  lease_us INTEGER NOT NULL,
  timeout_us INTEGER,
  created_at INTEGER NOT NULL,
  -- Set if and only if the job is done, failed or cancelled.
  finished_at INTEGER,
  -- Set if and only if the job is leased, like owner and until.
  token TEXT,
  -- The token of the last accepted settlement, to recognize its repetition.
  last_token TEXT,
  owner TEXT,
  until INTEGER,
  cancel_requested INTEGER NOT NULL DEFAULT 0,
  last_error_code TEXT,
  last_error_at INTEGER,
  shard_key TEXT,
  cursor TEXT,
  progress TEXT,
  -- NULL: it is in large_payloads.
  payload TEXT,
  result TEXT,
  -- The trace context of the submission; NULL without tracing.
  trace TEXT
) STRICT;
CREATE INDEX jobs_ready ON jobs (lane, priority DESC, run_at) WHERE state = 'ready';
CREATE INDEX jobs_scheduled ON jobs (run_at) WHERE state = 'scheduled';
-- For promoting in turns when one lane has very many due jobs.
CREATE INDEX jobs_scheduled_by_lane ON jobs (lane, run_at) WHERE state = 'scheduled';
CREATE INDEX jobs_leased ON jobs (until) WHERE state = 'leased';
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_failed ON jobs (id) WHERE state = 'failed';
CREATE INDEX jobs_to_cancel ON jobs (owner) WHERE state = 'leased' AND cancel_requested = 1;
-- For lists of a small tenant among a million jobs of others. Neither column changes, so only submissions pay for it.
CREATE INDEX jobs_of_lane ON jobs (lane, id);

-- Payloads of more than a quarter of a page. SQLite writes a whole row whenever one of its columns changes, so a claim and
-- a settlement would each write the payload again. A BLOB, because its length is known without reading it.
CREATE TABLE large_payloads (
  seq INTEGER PRIMARY KEY,
  payload BLOB NOT NULL
) STRICT;

CREATE TABLE errors (
  job TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  at INTEGER NOT NULL,
  code TEXT NOT NULL,
  message TEXT NOT NULL,
  traceback TEXT NOT NULL
) STRICT;
CREATE INDEX errors_of_job ON errors (job);

-- What a lane counts in `bytes`: payload, result, and the rest: cursor, progress and errors.
CREATE VIEW job_sizes AS
SELECT seq, id, lane, state, token, finished_at,
       coalesce(length(CAST(payload AS BLOB)),
                (SELECT length(payload) FROM large_payloads WHERE large_payloads.seq = jobs.seq), 0) AS payload,
       coalesce(length(CAST(result AS BLOB)), 0) AS result,
       coalesce(length(CAST(cursor AS BLOB)), 0) + coalesce(length(CAST(progress AS BLOB)), 0)
       + CASE WHEN last_error_code IS NULL THEN 0
              ELSE (SELECT coalesce(sum(length(CAST(message AS BLOB)) + length(CAST(traceback AS BLOB))), 0)
                      FROM errors WHERE errors.job = jobs.id) END AS rest
  FROM jobs;

-- Idempotency keys. They outlive their jobs.
CREATE TABLE keys (
  tenant TEXT NOT NULL,
  key TEXT NOT NULL,
  job TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  expires_at INTEGER NOT NULL,
  PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_expiring ON keys (expires_at);
