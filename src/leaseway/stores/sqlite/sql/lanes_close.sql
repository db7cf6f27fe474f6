-- Close the lanes of these gates, or open them if no time is given. A lane that is closed already keeps its time, and a
-- lane without a gate stays open. The lanes are found by the gate, as in lanes_with_work.sql.
UPDATE lanes INDEXED BY lanes_of_gate SET closed_until = gate.until, closed_why = gate.why
  FROM (SELECT value ->> 0 AS needs, value ->> 1 AS tenant, value ->> 2 AS until, value ->> 3 AS why
          FROM json_each(:closings)) AS gate
 WHERE lanes.tenant = gate.tenant AND lanes.needs = gate.needs
   AND queue IN (SELECT value FROM json_each(:queues)) AND (closed_until IS NULL) = (gate.until IS NOT NULL)
   AND (gate.needs <> '' OR EXISTS (SELECT 1 FROM tenants WHERE name = gate.tenant AND is_capped = 1))
