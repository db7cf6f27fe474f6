DELETE FROM budget_journal WHERE window_id = :id
