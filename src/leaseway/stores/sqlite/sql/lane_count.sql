-- Add what a transaction changed to the counters of one lane.
UPDATE lanes
   SET ready = ready + ?, scheduled = scheduled + ?, leased = leased + ?,
       done = done + ?, failed = failed + ?, cancelled = cancelled + ?
 WHERE id = ?
