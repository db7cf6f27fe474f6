-- A lane that was served has moved on, and remembers how far everybody was.
UPDATE lanes SET served_at = ?, vtime = ?, vfloor = ? WHERE id = ?
