CREATE TABLE IF NOT EXISTS leaseway_runs (
  id text NOT NULL PRIMARY KEY,
  target text NOT NULL,
  source text NOT NULL,
  spec_hash text NOT NULL,
  started_at bigint NOT NULL,
  finished_at bigint,
  state text NOT NULL,
  mode text NOT NULL,
  since bigint,
  watermark bigint,
  concurrency bigint NOT NULL,
  id_max bigint,
  requests_max bigint,
  requests bigint NOT NULL,
  notes text NOT NULL,
  why text
);
CREATE TABLE IF NOT EXISTS leaseway_shards (
  run text NOT NULL,
  key text NOT NULL,
  label text NOT NULL,
  predicate text NOT NULL,
  estimated_rows bigint,
  depth bigint NOT NULL,
  state text NOT NULL,
  fence bigint NOT NULL,
  cursor text,
  pages bigint NOT NULL,
  rows bigint NOT NULL,
  inserted bigint NOT NULL,
  updated bigint NOT NULL,
  unchanged bigint NOT NULL,
  stale bigint NOT NULL,
  quarantined bigint NOT NULL,
  requests bigint NOT NULL,
  size_bytes bigint NOT NULL,
  attempts bigint NOT NULL,
  resumed_at text,
  page_limit bigint,
  recent text NOT NULL,
  guards text NOT NULL,
  why text,
  parent text,
  started_at bigint,
  finished_at bigint,
  profile text NOT NULL,
  PRIMARY KEY (run, key)
);
-- The number of open shards is read between pages.
CREATE INDEX IF NOT EXISTS leaseway_shards_open ON leaseway_shards (run) WHERE state IN ('waiting', 'running');
CREATE TABLE IF NOT EXISTS leaseway_quarantine (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run text NOT NULL,
  shard text NOT NULL,
  page bigint NOT NULL,
  position bigint NOT NULL,
  external_id text,
  code text NOT NULL,
  problem text NOT NULL,
  document text NOT NULL,
  first_seen bigint NOT NULL,
  UNIQUE (run, number)
);
CREATE TABLE IF NOT EXISTS leaseway_seen (
  run text NOT NULL,
  external_id text COLLATE "C" NOT NULL,
  PRIMARY KEY (run, external_id)
);
CREATE TABLE IF NOT EXISTS leaseway_absent (
  target text NOT NULL,
  source text NOT NULL,
  external_id text COLLATE "C" NOT NULL,
  sweeps bigint NOT NULL,
  run text NOT NULL,
  PRIMARY KEY (target, source, external_id)
);
CREATE TABLE IF NOT EXISTS leaseway_import_version (
  version bigint NOT NULL
);
