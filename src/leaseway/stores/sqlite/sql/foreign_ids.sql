-- Ids among these that belong to jobs of other tenants.
SELECT jobs.id FROM json_each(:jobs) AS sent
 CROSS JOIN jobs ON jobs.id = sent.value ->> 0
  JOIN lanes ON lanes.id = jobs.lane
 WHERE lanes.tenant <> sent.value ->> 1
 LIMIT 1
