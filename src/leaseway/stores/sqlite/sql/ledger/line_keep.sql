INSERT INTO hold_lines (hold, place, window_id, amount_micros, actual_micros)
VALUES (:hold, :place, :window, :amount_micros, :actual_micros)
