-- The sums of windows, journal and holds, all from one snapshot. They must agree.
SELECT 'windows' AS side, name, starts_at, ends_at, label, held_micros AS held, spent_micros AS spent,
       spent_micros + held_micros <= limit_micros + overdraft_micros AS is_balanced
  FROM :schema.budget_windows
UNION ALL
SELECT 'journal', name, starts_at, ends_at, label, sum(journal.held_micros)::bigint, sum(journal.spent_micros)::bigint, true
  FROM :schema.budget_journal AS journal JOIN :schema.budget_windows AS known ON known.id = window_id GROUP BY known.id
UNION ALL
SELECT 'holds', name, starts_at, ends_at, label,
       coalesce(sum(amount_micros) FILTER (WHERE state IN ('held', 'dispatched')), 0)::bigint,
       coalesce(sum(actual_micros), 0)::bigint, true
  FROM :schema.holds JOIN :schema.hold_lines ON hold = holds.id JOIN :schema.budget_windows AS known ON known.id = window_id
 GROUP BY known.id
