-- Advance the virtual time of a flow that was served, and store the floors.
UPDATE flows SET served_at = ?, vtime = ?, vfloor = ?, lane_floor = coalesce(?, lane_floor) WHERE queue = ? AND tenant = ?
