-- The CHECK of the table has the last word.
UPDATE budget_windows SET spent_micros = :spent_micros, held_micros = :held_micros, overdraft_micros = :overdraft_micros,
       told = :told
 WHERE id = :id
