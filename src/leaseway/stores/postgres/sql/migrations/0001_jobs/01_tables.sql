-- A job that is not finished is a narrow row in `jobs` and an immutable row in `payloads`; its failed attempts are in
-- `errors`. A finished job is one row in `history`, which is kept by the day and dropped by the day.
-- The life of a job is its stage: 0 ready, 1 scheduled (both "pending"), 2 leased, 3 done, 4 failed, 5 cancelled.
-- Instants are microseconds since 1970 on the server's clock. Names of the schema appear nowhere: scripts run inside it.

CREATE TABLE lanes (
  id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue text COLLATE "C" NOT NULL,
  tenant text COLLATE "C" NOT NULL,
  needs text COLLATE "C" NOT NULL,
  ready bigint NOT NULL DEFAULT 0,
  scheduled bigint NOT NULL DEFAULT 0,
  leased bigint NOT NULL DEFAULT 0,
  done bigint NOT NULL DEFAULT 0,
  failed bigint NOT NULL DEFAULT 0,
  cancelled bigint NOT NULL DEFAULT 0,
  served_at bigint NOT NULL DEFAULT 0,
  -- How much it has been served, and how far everybody was then: leaseway.domain.lane.
  vtime bigint NOT NULL DEFAULT 0,
  vfloor bigint NOT NULL DEFAULT 0,
  UNIQUE (queue, tenant, needs)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX lanes_needy ON lanes (queue) WHERE needs <> '';

-- What was agreed with tenants. `starts` is JSON that only its writer reads.
CREATE TABLE tenants (
  name text COLLATE "C" PRIMARY KEY,
  weight integer NOT NULL,
  starts text NOT NULL,
  concurrency integer,
  is_capped boolean NOT NULL
);
CREATE INDEX tenants_capped ON tenants (name) WHERE is_capped;

-- What transactions changed in lanes. Only ever inserted into, so that nobody waits for anybody; `fold` adds it up.
CREATE TABLE lane_changes (
  lane integer NOT NULL,
  ready integer NOT NULL DEFAULT 0,
  scheduled integer NOT NULL DEFAULT 0,
  leased integer NOT NULL DEFAULT 0,
  done integer NOT NULL DEFAULT 0,
  failed integer NOT NULL DEFAULT 0,
  cancelled integer NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE SEQUENCE job_seq;

CREATE TABLE jobs (
  seq bigint NOT NULL DEFAULT nextval('job_seq'),
  run_at bigint NOT NULL,
  until bigint,
  lane integer NOT NULL,
  attempts integer NOT NULL DEFAULT 0,
  fence integer NOT NULL DEFAULT 0,
  stage smallint NOT NULL,
  priority smallint NOT NULL,
  cancel_requested boolean NOT NULL DEFAULT false,
  id text COLLATE "C" PRIMARY KEY,
  token text COLLATE "C",
  owner text COLLATE "C",
  last_token text COLLATE "C",
  last_error_code text,
  last_error_at bigint,
  cursor text,
  progress text
) WITH (
  fillfactor = 85,
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.1
);
CREATE INDEX jobs_ready ON jobs (lane, priority DESC, run_at, seq) WHERE stage = 0;
CREATE INDEX jobs_scheduled ON jobs (run_at, seq) WHERE stage = 1;
CREATE INDEX jobs_leased ON jobs (until, seq) WHERE stage = 2;
CREATE INDEX jobs_to_cancel ON jobs (owner) WHERE stage = 2 AND cancel_requested;

CREATE TABLE payloads (
  id text COLLATE "C" PRIMARY KEY,
  created_at bigint NOT NULL,
  lease_us bigint NOT NULL,
  timeout_us bigint,
  attempts_max integer NOT NULL,
  kind text COLLATE "C" NOT NULL,
  shard_key text,
  payload text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE errors (
  seq bigint GENERATED ALWAYS AS IDENTITY,
  job text COLLATE "C" NOT NULL,
  attempt integer NOT NULL,
  at bigint NOT NULL,
  code text NOT NULL,
  message text NOT NULL,
  traceback text NOT NULL
);
CREATE INDEX errors_of_job ON errors (job, seq);

CREATE TABLE history (
  seq bigint NOT NULL,
  run_at bigint NOT NULL,
  created_at bigint NOT NULL,
  finished_at bigint NOT NULL,
  lease_us bigint NOT NULL,
  timeout_us bigint,
  lane integer NOT NULL,
  attempts integer NOT NULL,
  attempts_max integer NOT NULL,
  fence integer NOT NULL,
  stage smallint NOT NULL,
  priority smallint NOT NULL,
  cancel_requested boolean NOT NULL,
  id text COLLATE "C" NOT NULL,
  last_token text COLLATE "C",
  kind text COLLATE "C" NOT NULL,
  shard_key text,
  last_error_code text,
  last_error_at bigint,
  cursor text,
  progress text,
  payload text NOT NULL,
  result text,
  errors json
) PARTITION BY RANGE (finished_at);
CREATE INDEX history_id ON history (id);
CREATE INDEX history_unsuccessful ON history (id) WHERE stage > 3;
CREATE INDEX history_finished ON history USING brin (finished_at);
-- What no day has a table for, so that a missing one never stops anybody.
CREATE TABLE history_rest PARTITION OF history DEFAULT;

-- Idempotency keys live longer than the jobs they name.
CREATE TABLE keys (
  tenant text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  job text COLLATE "C" NOT NULL,
  fingerprint text NOT NULL,
  expires_at bigint NOT NULL,
  PRIMARY KEY (tenant, key)
);
CREATE INDEX keys_expiring ON keys (expires_at);

CREATE TABLE schedules (
  name text COLLATE "C" PRIMARY KEY,
  kind text NOT NULL,
  cron text NOT NULL,
  tz text NOT NULL,
  missed text NOT NULL,
  seen bigint NOT NULL,
  last_fire bigint,
  paused boolean NOT NULL DEFAULT false
);

CREATE FUNCTION now_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
