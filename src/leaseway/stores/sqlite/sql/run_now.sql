-- Make a scheduled job ready before its time.
UPDATE jobs SET state = 'ready', run_at = min(run_at, :now) WHERE seq = :seq AND state = 'scheduled'
