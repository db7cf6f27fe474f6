CREATE TABLE IF NOT EXISTS leaseway_runs (
  id TEXT NOT NULL PRIMARY KEY,
  target TEXT NOT NULL,
  source TEXT NOT NULL,
  spec_hash TEXT NOT NULL,
  started_at INTEGER NOT NULL,
  finished_at INTEGER,
  state TEXT NOT NULL,
  mode TEXT NOT NULL,
  since INTEGER,
  watermark INTEGER,
  concurrency INTEGER NOT NULL,
  id_max INTEGER,
  requests_max INTEGER,
  requests INTEGER NOT NULL,
  notes TEXT NOT NULL,
  why TEXT
);
CREATE TABLE IF NOT EXISTS leaseway_shards (
  run TEXT NOT NULL,
  key TEXT NOT NULL,
  label TEXT NOT NULL,
  predicate TEXT NOT NULL,
  estimated_rows INTEGER,
  depth INTEGER NOT NULL,
  state TEXT NOT NULL,
  fence INTEGER NOT NULL,
  cursor TEXT,
  pages INTEGER NOT NULL,
  rows INTEGER NOT NULL,
  inserted INTEGER NOT NULL,
  updated INTEGER NOT NULL,
  unchanged INTEGER NOT NULL,
  stale INTEGER NOT NULL,
  quarantined INTEGER NOT NULL,
  requests INTEGER NOT NULL,
  size_bytes INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  resumed_at TEXT,
  page_limit INTEGER,
  recent TEXT NOT NULL,
  guards TEXT NOT NULL,
  why TEXT,
  parent TEXT,
  started_at INTEGER,
  finished_at INTEGER,
  profile TEXT NOT NULL,
  PRIMARY KEY (run, key)
);
-- The number of open shards is read between pages.
CREATE INDEX IF NOT EXISTS leaseway_shards_open ON leaseway_shards (run) WHERE state IN ('waiting', 'running');
CREATE TABLE IF NOT EXISTS leaseway_quarantine (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  run TEXT NOT NULL,
  shard TEXT NOT NULL,
  page INTEGER NOT NULL,
  position INTEGER NOT NULL,
  external_id TEXT,
  code TEXT NOT NULL,
  problem TEXT NOT NULL,
  document TEXT NOT NULL,
  first_seen INTEGER NOT NULL,
  UNIQUE (run, number)
);
CREATE TABLE IF NOT EXISTS leaseway_seen (
  run TEXT NOT NULL,
  external_id TEXT NOT NULL,
  PRIMARY KEY (run, external_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leaseway_absent (
  target TEXT NOT NULL,
  source TEXT NOT NULL,
  external_id TEXT NOT NULL,
  sweeps INTEGER NOT NULL,
  run TEXT NOT NULL,
  PRIMARY KEY (target, source, external_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leaseway_import_version (
  version INTEGER NOT NULL
);
