-- Claim nothing from these lanes until somebody resumes them.
SELECT :schema.pause_lanes($1, $2, $3)
