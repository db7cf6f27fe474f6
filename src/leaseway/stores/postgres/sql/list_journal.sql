-- The journal of a budget, newest first.
SELECT seq, at, hold, name, starts_at, ends_at, label, kind, journal.held_micros, journal.spent_micros, crossed,
       corrected_by, reason, from_micros
  FROM :schema.budget_journal AS journal JOIN :schema.budget_windows AS known ON known.id = window_id
 WHERE name = $1 ORDER BY seq DESC LIMIT $2
