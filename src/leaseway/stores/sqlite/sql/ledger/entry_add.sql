INSERT INTO budget_journal (at, hold, window_id, kind, held_micros, spent_micros, crossed)
VALUES (:at, :hold, :window, :kind, :held_micros, :spent_micros, :crossed)
