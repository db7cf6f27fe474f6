-- The CHECK of the table has the last word. A row: id, spent_micros, held_micros, overdraft_micros, threshold_percent.
UPDATE budget_windows
   SET spent_micros = json_extract(value, '$[1]'), held_micros = json_extract(value, '$[2]'),
       overdraft_micros = json_extract(value, '$[3]'), threshold_percent = json_extract(value, '$[4]')
  FROM json_each(:rows) WHERE budget_windows.id = json_extract(value, '$[0]')
