-- Advance the virtual time of a lane that was served, and store the floor.
UPDATE lanes SET served_at = ?, vtime = ?, vfloor = ? WHERE id = ?
