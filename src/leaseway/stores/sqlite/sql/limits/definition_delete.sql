DELETE FROM definitions WHERE name = :name
