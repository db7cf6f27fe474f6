DELETE FROM hold_lines WHERE hold = :hold
