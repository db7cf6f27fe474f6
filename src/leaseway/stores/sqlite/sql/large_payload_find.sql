-- The payloads of these jobs, as rows: large texts are not packed into JSON, which would escape and parse them.
SELECT seq, CAST(payload AS TEXT) FROM json_each(:jobs) AS asked CROSS JOIN large_payloads ON seq = asked.value
