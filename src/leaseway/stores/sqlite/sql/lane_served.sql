-- A lane that was served goes to the end of the line.
UPDATE lanes SET served_at = ? WHERE id = ?
