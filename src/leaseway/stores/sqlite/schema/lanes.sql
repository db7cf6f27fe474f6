-- Lanes: the jobs of one queue and tenant with the same requirements. A lane is created with its first job and stays.
-- Instants are microseconds since 1970 on the store's clock.

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
  served_at INTEGER NOT NULL DEFAULT 0,
  -- The virtual time of the lane, and that of the lane furthest behind when this one was last served:
  -- see leaseway.domain.lane.
  vtime INTEGER NOT NULL DEFAULT 0,
  vfloor INTEGER NOT NULL DEFAULT 0,
  UNIQUE (queue, tenant, needs)
);
CREATE INDEX lanes_ready ON lanes (queue, vtime) WHERE ready > 0;
CREATE INDEX lanes_floor ON lanes (queue, vfloor);
CREATE INDEX lanes_needy ON lanes (queue) WHERE needs <> '';

-- Weights and caps of tenants. `starts` is JSON.
CREATE TABLE tenants (
  name TEXT PRIMARY KEY,
  weight INTEGER NOT NULL,
  starts TEXT NOT NULL,
  concurrency INTEGER,
  is_capped INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX tenants_capped ON tenants (name) WHERE is_capped = 1;

-- Paused lanes: nothing is claimed from them. An empty tenant stands for all tenants of the queue, future ones included.
CREATE TABLE pauses (
  queue TEXT NOT NULL,
  tenant TEXT NOT NULL,
  since INTEGER NOT NULL,
  PRIMARY KEY (queue, tenant)
) WITHOUT ROWID;
