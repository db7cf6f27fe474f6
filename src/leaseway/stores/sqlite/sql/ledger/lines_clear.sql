DELETE FROM hold_lines WHERE hold IN (SELECT value FROM json_each(:holds))
