-- A row: hold, place, window, amount_micros, actual_micros.
INSERT INTO hold_lines (hold, place, window_id, amount_micros, actual_micros)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), json_extract(value, '$[4]')
  FROM json_each(:rows) WHERE TRUE
ON CONFLICT (hold, place) DO UPDATE
   SET window_id = excluded.window_id, amount_micros = excluded.amount_micros, actual_micros = excluded.actual_micros
