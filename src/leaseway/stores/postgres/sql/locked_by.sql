-- The session whose open transaction has locked or changed this row. Waiting a second tells it from a claim in progress.
SELECT format('%s (%s)', pid, coalesce(nullif(application_name, ''), usename::text, 'unknown'))
  FROM :schema.jobs JOIN pg_locks ON transactionid = jobs.xmax AND locktype = 'transactionid' AND granted
       LEFT JOIN pg_stat_activity USING (pid)
 WHERE jobs.id = $1 AND (xact_start IS NULL OR xact_start < clock_timestamp() - interval '1 second')
