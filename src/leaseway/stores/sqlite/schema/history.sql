-- The history of the work, in rows that merge: see leaseway.domain.history. `cell` is JSON. Level 0: minutes, 1: hours,
-- 2: days.
CREATE TABLE work_history (
  id TEXT PRIMARY KEY,
  level INTEGER NOT NULL,
  at INTEGER NOT NULL,
  tenant TEXT NOT NULL,
  queue TEXT NOT NULL,
  kind TEXT NOT NULL,
  cell TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX work_history_by_time ON work_history (level, at);
