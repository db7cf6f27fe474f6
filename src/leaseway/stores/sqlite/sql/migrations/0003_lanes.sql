-- A lane is named by what its jobs need, too. SQLite cannot change a UNIQUE constraint, so the table is made anew.
CREATE TABLE lanes_by_needs (
  id INTEGER PRIMARY KEY,
  queue TEXT NOT NULL,
  tenant TEXT NOT NULL,
  needs TEXT NOT NULL DEFAULT '',
  ready INTEGER NOT NULL DEFAULT 0,
  scheduled INTEGER NOT NULL DEFAULT 0,
  leased INTEGER NOT NULL DEFAULT 0,
  done INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0,
  cancelled INTEGER NOT NULL DEFAULT 0,
  served_at INTEGER NOT NULL DEFAULT 0,
  -- How much it has been served, and how far everybody was then: leaseway.domain.lane.
  vtime INTEGER NOT NULL DEFAULT 0,
  vfloor INTEGER NOT NULL DEFAULT 0,
  UNIQUE (queue, tenant, needs)
);
INSERT INTO lanes_by_needs (id, queue, tenant, ready, scheduled, leased, done, failed, cancelled, served_at)
SELECT id, queue, tenant, ready, scheduled, leased, done, failed, cancelled, served_at FROM lanes;
DROP TABLE lanes;
ALTER TABLE lanes_by_needs RENAME TO lanes;

CREATE INDEX lanes_ready ON lanes (queue, vtime) WHERE ready > 0;
CREATE INDEX lanes_floor ON lanes (queue, vfloor);
CREATE INDEX lanes_needy ON lanes (queue) WHERE needs <> '';

-- What was agreed with tenants. `starts` is JSON.
CREATE TABLE tenants (
  name TEXT PRIMARY KEY,
  weight INTEGER NOT NULL,
  starts TEXT NOT NULL,
  concurrency INTEGER,
  is_capped INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX tenants_capped ON tenants (name) WHERE is_capped = 1;
