-- Workers and their last heartbeats. `beat` is JSON. An empty tenant: the worker works for all tenants.
CREATE TABLE workers (
  name TEXT PRIMARY KEY,
  tenant TEXT NOT NULL,
  since INTEGER NOT NULL,
  seen_at INTEGER NOT NULL,
  drain_requested INTEGER NOT NULL DEFAULT 0,
  beat TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What the supervisors of each pool have decided, as JSON: see leaseway.domain.scaling.agreement.
CREATE TABLE pools (
  name TEXT PRIMARY KEY,
  version TEXT NOT NULL,
  record TEXT NOT NULL,
  written_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
