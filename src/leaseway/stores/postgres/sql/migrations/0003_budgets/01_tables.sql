-- Budgets: what is agreed, what each window has seen, who holds what, and the journal of every move.
-- Amounts are micro-units. A stamp changes with every word about a budget, so that clients know what they know.

CREATE SEQUENCE budget_stamps;

CREATE TABLE budgets (
  name text COLLATE "C" PRIMARY KEY,
  unit text NOT NULL,
  limit_micros bigint NOT NULL,
  overdraft_micros bigint NOT NULL,
  definition jsonb NOT NULL,
  declared jsonb,
  version integer NOT NULL DEFAULT 1,
  stamp bigint NOT NULL DEFAULT nextval('budget_stamps')
);

CREATE TABLE budget_windows (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  starts_at bigint NOT NULL,
  ends_at bigint NOT NULL,
  limit_micros bigint NOT NULL,
  spent_micros bigint NOT NULL DEFAULT 0 CHECK (spent_micros >= 0),
  held_micros bigint NOT NULL DEFAULT 0 CHECK (held_micros >= 0),
  overdraft_micros bigint NOT NULL DEFAULT 0 CHECK (overdraft_micros >= 0),
  told smallint NOT NULL DEFAULT 0,
  name text COLLATE "C" NOT NULL,
  budget text COLLATE "C" NOT NULL,
  unit text NOT NULL,
  label text COLLATE "C" NOT NULL,
  UNIQUE (name, starts_at, ends_at, label),
  CHECK (spent_micros + held_micros <= limit_micros + overdraft_micros)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX budget_windows_of_budget ON budget_windows (budget);
CREATE INDEX budget_windows_ending ON budget_windows (ends_at);

CREATE TABLE holds (
  id text COLLATE "C" PRIMARY KEY,
  deadline bigint NOT NULL,
  ttl_us bigint NOT NULL,
  state text NOT NULL CHECK (state IN ('held', 'dispatched', 'settled', 'captured', 'void')),
  owner text NOT NULL
);
CREATE INDEX holds_open ON holds (deadline, id) WHERE state IN ('held', 'dispatched');

CREATE TABLE hold_lines (
  hold text COLLATE "C" NOT NULL,
  place integer NOT NULL,
  window_id bigint NOT NULL,
  amount_micros bigint NOT NULL,
  actual_micros bigint,
  PRIMARY KEY (hold, place)
);
CREATE INDEX hold_lines_of_window ON hold_lines (window_id);

-- Only ever added to.
CREATE TABLE budget_journal (
  seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at bigint NOT NULL,
  window_id bigint NOT NULL,
  held_micros bigint NOT NULL,
  spent_micros bigint NOT NULL,
  crossed smallint NOT NULL DEFAULT 0,
  kind text NOT NULL,
  hold text COLLATE "C" NOT NULL
);
CREATE INDEX budget_journal_of_window ON budget_journal (window_id, seq);

-- The highest threshold that this spending has reached.
CREATE FUNCTION threshold_reached(spent bigint, limit_of_it bigint) RETURNS smallint LANGUAGE sql IMMUTABLE RETURN
  CASE WHEN spent >= limit_of_it THEN 100
       WHEN spent >= (limit_of_it * 80 + 99) / 100 THEN 80
       WHEN spent >= (limit_of_it * 50 + 99) / 100 THEN 50
       ELSE 0 END;
