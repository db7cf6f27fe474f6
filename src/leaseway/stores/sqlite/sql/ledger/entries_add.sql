-- A row: hold, window, kind, held_micros, spent_micros, crossed, by, reason, from_micros.
INSERT INTO budget_journal (at, hold, window_id, kind, held_micros, spent_micros, crossed, by, reason, from_micros)
SELECT :at, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
       json_extract(value, '$[6]'), json_extract(value, '$[7]'), json_extract(value, '$[8]')
  FROM json_each(:rows) ORDER BY key
