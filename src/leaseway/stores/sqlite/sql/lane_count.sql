-- Add the changes of a transaction to the counters of one lane.
UPDATE lanes
   SET ready = ready + ?, scheduled = scheduled + ?, leased = leased + ?,
       done = done + ?, failed = failed + ?, cancelled = cancelled + ?, bytes = bytes + ?
 WHERE id = ?
