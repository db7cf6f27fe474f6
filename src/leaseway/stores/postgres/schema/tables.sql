-- Tables of jobs, lanes and schedules.
--
-- A job that has not finished is a narrow row in `jobs`, which changes often, and an immutable row in `payloads`; its
-- failed attempts are rows in `errors`. A finished job is one row in `history`, which is partitioned by day, so that
-- pruning drops whole partitions.
--
-- Times are microseconds since 1970 on the server's clock. No script names the schema: the search path selects it.

-- Users see "ready" and "scheduled" as one state, "pending". A scheduled job becomes ready when its time comes.
CREATE TYPE job_state AS ENUM ('ready', 'scheduled', 'leased', 'done', 'failed', 'cancelled');

-- The work of one tenant in one queue. Flows share claims; see leaseway.domain.lane.
CREATE TABLE flows (
  id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue text COLLATE "C" NOT NULL,
  tenant text COLLATE "C" NOT NULL,
  served_at bigint NOT NULL DEFAULT 0,
  -- Virtual times of the fair scheduler. `vtime` is how much service the flow has received; `vfloor` is the smallest
  -- virtual time among the flows that were waiting when this one was served; `lane_floor` is the same for its lanes.
  vtime bigint NOT NULL DEFAULT 0,
  vfloor bigint NOT NULL DEFAULT 0,
  lane_floor bigint NOT NULL DEFAULT 0,
  UNIQUE (queue, tenant)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- A lane is created with its first job, and deleted by prune when it has no job left.
CREATE TABLE lanes (
  id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  flow integer NOT NULL,
  queue text COLLATE "C" NOT NULL,
  tenant text COLLATE "C" NOT NULL,
  needs text COLLATE "C" NOT NULL,
  ready bigint NOT NULL DEFAULT 0,
  scheduled bigint NOT NULL DEFAULT 0,
  leased bigint NOT NULL DEFAULT 0,
  done bigint NOT NULL DEFAULT 0,
  failed bigint NOT NULL DEFAULT 0,
  cancelled bigint NOT NULL DEFAULT 0,
  -- The size of all texts of the jobs: payload, cursor, progress, result and errors.
  bytes bigint NOT NULL DEFAULT 0,
  -- The virtual time of the lane within its flow.
  vtime bigint NOT NULL DEFAULT 0,
  -- Whether `ready` is above 0. The indexes refer to this column, because it changes less often than the counter.
  has_ready boolean NOT NULL DEFAULT false,
  -- Set while a worker knows that the gate of this lane is closed, like closed_why.
  closed_until bigint,
  closed_why text,
  UNIQUE (queue, tenant, needs)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- A flow has one lane without requirements. Lanes with requirements have an index of their own that leaves out closed
-- lanes, so that a hundred thousand of them cost nothing.
CREATE INDEX lanes_plain ON lanes (queue) WHERE needs = '';
CREATE INDEX lanes_gated ON lanes (queue, tenant, vtime, needs) WHERE has_ready AND needs <> '' AND closed_until IS NULL;
CREATE INDEX lanes_closed ON lanes (closed_until) WHERE closed_until IS NOT NULL;
-- The lanes of a tenant, and of a gate.
CREATE INDEX lanes_of_gate ON lanes (tenant, needs);

-- Changes of the counters in `lanes`. Transactions only insert here, so that they never wait for each other;
-- fold_lane_changes adds the rows to `lanes`.
CREATE TABLE lane_changes (
  lane integer NOT NULL,
  ready integer NOT NULL DEFAULT 0,
  scheduled integer NOT NULL DEFAULT 0,
  leased integer NOT NULL DEFAULT 0,
  done integer NOT NULL DEFAULT 0,
  failed integer NOT NULL DEFAULT 0,
  cancelled integer NOT NULL DEFAULT 0,
  bytes bigint NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Paused lanes: no job is claimed from them. An empty tenant stands for every tenant of the queue, including tenants
-- that appear later.
CREATE TABLE pauses (
  queue text COLLATE "C" NOT NULL,
  tenant text COLLATE "C" NOT NULL,
  since bigint NOT NULL,
  PRIMARY KEY (queue, tenant)
);

-- Weights, caps and quotas of tenants. `starts` and `quotas` hold JSON that only the client reads.
CREATE TABLE tenants (
  name text COLLATE "C" PRIMARY KEY,
  weight integer NOT NULL,
  starts text NOT NULL,
  concurrency integer,
  is_capped boolean NOT NULL,
  quotas text NOT NULL
);
CREATE INDEX tenants_capped ON tenants (name) WHERE is_capped;

CREATE SEQUENCE job_seq;

-- The lane that the last visit of lanes with due jobs ended with; 0: the next visit starts with the first lane. A sequence
-- is written without a lock that others would wait for.
CREATE SEQUENCE promoted_upto MINVALUE 0;

CREATE TABLE jobs (
  seq bigint NOT NULL DEFAULT nextval('job_seq'),
  run_at bigint NOT NULL,
  until bigint,
  fence bigint NOT NULL DEFAULT 0,
  lane integer NOT NULL,
  attempts integer NOT NULL DEFAULT 0,
  state job_state NOT NULL,
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
CREATE INDEX jobs_ready ON jobs (lane, priority DESC, run_at, seq) WHERE state = 'ready';
CREATE INDEX jobs_scheduled ON jobs (run_at, seq) WHERE state = 'scheduled';
CREATE INDEX jobs_leased ON jobs (until, seq) WHERE state = 'leased';
CREATE INDEX jobs_to_cancel ON jobs (owner) WHERE state = 'leased' AND cancel_requested;
-- For listing the jobs of a small tenant beside many jobs of other tenants. Ready jobs are found by lane through
-- jobs_ready, and leased jobs are few.
CREATE INDEX jobs_scheduled_by_lane ON jobs (lane, id) WHERE state = 'scheduled';
-- For promoting in turns when one lane has very many due jobs.
CREATE INDEX jobs_due_by_lane ON jobs (lane, run_at, seq) WHERE state = 'scheduled';

CREATE TABLE payloads (
  id text COLLATE "C" PRIMARY KEY,
  created_at bigint NOT NULL,
  lease_us bigint NOT NULL,
  timeout_us bigint,
  attempts_max integer NOT NULL,
  kind text COLLATE "C" NOT NULL,
  shard_key text,
  payload text NOT NULL,
  -- The trace context of the submitter. It is deleted when the job finishes.
  trace text
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
CREATE INDEX errors_by_job ON errors (job, seq);

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
  -- The size of payload, cursor, progress, result and errors. The lane subtracts it when the row is deleted.
  bytes integer NOT NULL,
  fence bigint NOT NULL,
  state job_state NOT NULL,
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
CREATE INDEX history_unsuccessful ON history (id) WHERE state IN ('failed', 'cancelled');
CREATE INDEX history_lane ON history (lane, id);
CREATE INDEX history_finished ON history USING brin (finished_at);
-- Receives the rows of days that have no partition, so that a missing partition never blocks a settlement.
CREATE TABLE history_default PARTITION OF history DEFAULT;

-- Idempotency keys outlive the jobs that they name.
CREATE TABLE idempotency_keys (
  tenant text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  job text COLLATE "C" NOT NULL,
  fingerprint text NOT NULL,
  expires_at bigint NOT NULL,
  PRIMARY KEY (tenant, key)
);
CREATE INDEX idempotency_keys_expiring ON idempotency_keys (expires_at);

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
