-- Extend leases that are still held. A lease without a returned row is lost.
UPDATE jobs SET until = :now + held.lease_us
  FROM (SELECT value ->> 0 AS id, value ->> 1 AS token, value ->> 2 AS lease_us FROM json_each(:leases)) AS held
 WHERE jobs.id = held.id AND jobs.token = held.token AND until > :now
RETURNING id, jobs.token, cancel_requested
