-- Lanes: the jobs of one queue and tenant with the same requirements. A lane is created with its first job, and deleted
-- by prune when it has no job left. Instants are microseconds since 1970 on the store's clock.

CREATE TABLE lanes (
  id INTEGER PRIMARY KEY,
  queue TEXT NOT NULL,
  tenant TEXT NOT NULL,
  needs TEXT NOT NULL DEFAULT '',
  -- The number of jobs in each state.
  ready INTEGER NOT NULL DEFAULT 0,
  scheduled INTEGER NOT NULL DEFAULT 0,
  leased INTEGER NOT NULL DEFAULT 0,
  done INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0,
  cancelled INTEGER NOT NULL DEFAULT 0,
  -- The size of all texts of the jobs: see the view job_sizes.
  bytes INTEGER NOT NULL DEFAULT 0,
  -- The virtual time of the lane within its flow: see leaseway.domain.lane.
  vtime INTEGER NOT NULL DEFAULT 0,
  -- Set while a worker knows that the gate of this lane is closed, like closed_why.
  closed_until INTEGER,
  closed_why TEXT,
  UNIQUE (queue, tenant, needs)
) STRICT;
-- A flow has one lane without requirements. The index of the others leaves out closed lanes, so that a hundred thousand
-- of them cost nothing.
CREATE INDEX lanes_gated ON lanes (queue, tenant, vtime, needs)
  WHERE ready > 0 AND needs <> '' AND closed_until IS NULL;
-- The lanes of a tenant, and of a gate.
CREATE INDEX lanes_of_gate ON lanes (tenant, needs);
CREATE INDEX lanes_needy ON lanes (queue) WHERE needs <> '';
CREATE INDEX lanes_closed ON lanes (closed_until) WHERE closed_until IS NOT NULL;

-- Flows: the work of one tenant in one queue. They share claims: see leaseway.domain.lane.
CREATE TABLE flows (
  queue TEXT NOT NULL,
  tenant TEXT NOT NULL,
  served_at INTEGER NOT NULL DEFAULT 0,
  -- The virtual time of the flow, and that of the flow furthest behind when this one was last served.
  vtime INTEGER NOT NULL DEFAULT 0,
  vfloor INTEGER NOT NULL DEFAULT 0,
  -- The virtual time of the lane of this flow that was furthest behind when several had work.
  lane_floor INTEGER NOT NULL DEFAULT 0,
  -- The number of its open lanes with ready jobs: those without and those with requirements. Triggers count them.
  plain_open INTEGER NOT NULL DEFAULT 0,
  needy_open INTEGER NOT NULL DEFAULT 0,
  -- A copy of the column of its tenant.
  is_capped INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (queue, tenant)
) STRICT, WITHOUT ROWID;
CREATE INDEX flows_floor ON flows (queue, vfloor);
-- Claims walk the flows with work in the order of their virtual times, and stop when they have seen enough.
CREATE INDEX flows_plain ON flows (queue, is_capped, vtime, tenant) WHERE plain_open > 0;
CREATE INDEX flows_needy ON flows (queue, vtime, tenant) WHERE needy_open > 0;

CREATE TRIGGER lane_inserted AFTER INSERT ON lanes WHEN new.ready > 0 AND new.closed_until IS NULL BEGIN
  UPDATE flows SET plain_open = plain_open + (new.needs = ''), needy_open = needy_open + (new.needs <> '')
   WHERE queue = new.queue AND tenant = new.tenant;
END;
CREATE TRIGGER lane_opened AFTER UPDATE OF ready, closed_until ON lanes
  WHEN (new.ready > 0 AND new.closed_until IS NULL) > (old.ready > 0 AND old.closed_until IS NULL) BEGIN
  UPDATE flows SET plain_open = plain_open + (new.needs = ''), needy_open = needy_open + (new.needs <> '')
   WHERE queue = new.queue AND tenant = new.tenant;
END;
CREATE TRIGGER lane_closed AFTER UPDATE OF ready, closed_until ON lanes
  WHEN (new.ready > 0 AND new.closed_until IS NULL) < (old.ready > 0 AND old.closed_until IS NULL) BEGIN
  UPDATE flows SET plain_open = plain_open - (new.needs = ''), needy_open = needy_open - (new.needs <> '')
   WHERE queue = new.queue AND tenant = new.tenant;
END;

-- The lane that the last visit of lanes with due jobs ended with; 0: the next visit starts with the first lane.
CREATE TABLE promotion (upto INTEGER NOT NULL) STRICT;
INSERT INTO promotion VALUES (0);

-- Weights, caps and quotas of tenants. `starts` and `quotas` are JSON.
CREATE TABLE tenants (
  name TEXT PRIMARY KEY,
  weight INTEGER NOT NULL,
  starts TEXT NOT NULL,
  concurrency INTEGER,
  is_capped INTEGER NOT NULL,
  quotas TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX tenants_capped ON tenants (name) WHERE is_capped = 1;

CREATE TRIGGER flow_opened AFTER INSERT ON flows
  WHEN EXISTS (SELECT 1 FROM tenants WHERE name = new.tenant AND is_capped = 1) BEGIN
  UPDATE flows SET is_capped = 1 WHERE queue = new.queue AND tenant = new.tenant;
END;
CREATE TRIGGER tenant_set AFTER INSERT ON tenants WHEN new.is_capped = 1 BEGIN
  UPDATE flows SET is_capped = 1 WHERE tenant = new.name;
END;
CREATE TRIGGER tenant_changed AFTER UPDATE OF is_capped ON tenants WHEN new.is_capped <> old.is_capped BEGIN
  UPDATE flows SET is_capped = new.is_capped WHERE tenant = new.name;
END;
CREATE TRIGGER tenant_forgotten AFTER DELETE ON tenants WHEN old.is_capped = 1 BEGIN
  UPDATE flows SET is_capped = 0 WHERE tenant = old.name;
END;

-- Paused lanes: nothing is claimed from them. An empty tenant stands for all tenants of the queue, future ones included.
CREATE TABLE pauses (
  queue TEXT NOT NULL,
  tenant TEXT NOT NULL,
  since INTEGER NOT NULL,
  PRIMARY KEY (queue, tenant)
) STRICT, WITHOUT ROWID;
