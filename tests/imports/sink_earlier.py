"""The books and the table as the first version of the sinks made them, with a run that was interrupted."""

BOOKS = """
CREATE TABLE IF NOT EXISTS leaseway_runs (
  id text NOT NULL PRIMARY KEY,
  target text NOT NULL,
  source text NOT NULL,
  spec_hash text NOT NULL,
  started_at bigint NOT NULL,
  finished_at bigint,
  state text NOT NULL,
  watermark bigint,
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
  finished_at bigint,
  PRIMARY KEY (run, key)
);
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
"""
"""As in PostgreSQL. SQLite takes the same words, but for one."""

TABLE = """
CREATE TABLE poi (
  source text NOT NULL,
  external_id text NOT NULL,
  stamp bigint NOT NULL,
  content_hash text NOT NULL,
  document jsonb NOT NULL,
  deleted_at bigint,
  run text NOT NULL,
  first_seen bigint NOT NULL,
  updated_at bigint NOT NULL,
  title text,
  PRIMARY KEY (source, external_id)
)
"""

LINES = """
INSERT INTO leaseway_runs (id, target, source, spec_hash, started_at, state, watermark)
VALUES ('run-1', 'poi', 'maps', 'hash-1', 17, 'running', 16);
INSERT INTO leaseway_shards (run, key, label, predicate, depth, state, fence, cursor, pages, rows, inserted, updated,
                             unchanged, stale, quarantined, requests, size_bytes, attempts, recent, guards)
VALUES ('run-1', 'maps/all/0', 'all', '{}', 0, 'running', 3, '{"after":1}', 1, 2, 2, 0,
        0, 0, 0, 1, 90, 1, '["a"]', '{"heavy":1}');
INSERT INTO poi (source, external_id, stamp, content_hash, document, deleted_at, run, first_seen, updated_at)
VALUES ('maps', '1', 5, 'hash-0', '{}', NULL, 'run-1', 17, 17), ('maps', '2', 5, 'hash-0', '{}', 20, 'run-1', 17, 17);
"""


def statements(is_postgres: bool) -> list[str]:
    whole = f"{BOOKS}{TABLE};{LINES}"
    if not is_postgres:
        whole = whole.replace("bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "INTEGER PRIMARY KEY AUTOINCREMENT")
        whole = whole.replace("jsonb", "TEXT").replace("bigint", "INTEGER")
    return [statement for statement in whole.split(";") if statement.strip()]
