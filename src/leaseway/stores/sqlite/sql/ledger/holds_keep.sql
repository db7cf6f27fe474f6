-- A row: id, state, owner, ttl_us, deadline, corrected_by.
INSERT INTO holds (id, state, owner, ttl_us, deadline, corrected_by)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]')
  FROM json_each(:rows) WHERE TRUE
ON CONFLICT (id) DO UPDATE
   SET state = excluded.state, owner = excluded.owner, ttl_us = excluded.ttl_us, deadline = excluded.deadline,
       corrected_by = excluded.corrected_by
