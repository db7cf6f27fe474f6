SELECT DISTINCT hold FROM hold_lines WHERE window_id = :id
