-- Delete a row that was merged.
DELETE FROM work_history WHERE id = ?
