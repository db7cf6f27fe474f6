SELECT seq, at, hold, name, starts_at, ends_at, label, kind, budget_journal.held_micros, budget_journal.spent_micros, crossed,
       by, reason, from_micros
  FROM budget_journal JOIN budget_windows ON id = window_id
 WHERE name = :name ORDER BY seq DESC LIMIT :limit
