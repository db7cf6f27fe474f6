-- A hold without lines is nothing.
DELETE FROM holds WHERE id = :id AND NOT EXISTS (SELECT 1 FROM hold_lines WHERE hold = :id)
