-- Budgets: definitions, the balance of each window, holds, and the journal of every booking.
-- Amounts are micro-units. Instants are microseconds since 1970 on the store's clock.

CREATE TABLE budgets (
  name TEXT PRIMARY KEY,
  definition TEXT NOT NULL,
  declared TEXT,
  version INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE budget_windows (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  budget TEXT NOT NULL,
  unit TEXT NOT NULL,
  starts_at INTEGER NOT NULL,
  ends_at INTEGER NOT NULL,
  label TEXT NOT NULL,
  limit_micros INTEGER NOT NULL,
  spent_micros INTEGER NOT NULL DEFAULT 0 CHECK (spent_micros >= 0),
  held_micros INTEGER NOT NULL DEFAULT 0 CHECK (held_micros >= 0),
  overdraft_micros INTEGER NOT NULL DEFAULT 0 CHECK (overdraft_micros >= 0),
  threshold_percent INTEGER NOT NULL DEFAULT 0,
  UNIQUE (name, starts_at, ends_at, label),
  CHECK (spent_micros + held_micros <= limit_micros + overdraft_micros)
) STRICT;
CREATE INDEX budget_windows_of_budget ON budget_windows (budget);
CREATE INDEX budget_windows_ending ON budget_windows (ends_at);

CREATE TABLE holds (
  id TEXT PRIMARY KEY,
  state TEXT NOT NULL CHECK (state IN ('held', 'dispatched', 'settled', 'captured', 'void')),
  owner TEXT NOT NULL,
  ttl_us INTEGER NOT NULL,
  deadline INTEGER NOT NULL,
  corrected_by TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX holds_open ON holds (deadline, id) WHERE state IN ('held', 'dispatched');
CREATE INDEX holds_reserved ON holds (id) WHERE state = 'held';
CREATE INDEX holds_captured ON holds (deadline, id) WHERE state = 'captured';

CREATE TABLE hold_lines (
  hold TEXT NOT NULL,
  place INTEGER NOT NULL,
  window_id INTEGER NOT NULL,
  amount_micros INTEGER NOT NULL,
  actual_micros INTEGER,
  PRIMARY KEY (hold, place)
) STRICT, WITHOUT ROWID;
CREATE INDEX hold_lines_of_window ON hold_lines (window_id);

-- Rows are only added. AUTOINCREMENT: the number of a pruned row is never used again. `by`, `reason` and `from_micros`
-- are set by corrections of operators.
CREATE TABLE budget_journal (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  hold TEXT NOT NULL,
  window_id INTEGER NOT NULL,
  kind TEXT NOT NULL,
  held_micros INTEGER NOT NULL,
  spent_micros INTEGER NOT NULL,
  crossed INTEGER NOT NULL DEFAULT 0,
  by TEXT,
  reason TEXT,
  from_micros INTEGER
) STRICT;
CREATE INDEX budget_journal_of_window ON budget_journal (window_id, seq);
