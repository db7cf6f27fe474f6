-- The CHECK of the table has the last word.
UPDATE budget_windows SET spent_micros = :spent_micros, held_micros = :held_micros, overdraft_micros = :overdraft_micros,
       threshold_percent = :threshold_percent
 WHERE id = :id
