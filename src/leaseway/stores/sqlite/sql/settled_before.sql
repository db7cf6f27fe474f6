-- The settlements that were accepted before: their reply was lost, and they are accepted again.
SELECT jobs.id FROM json_each(:settlements) AS sent
 CROSS JOIN jobs ON jobs.id = sent.value ->> 0 AND jobs.last_token = sent.value ->> 1
