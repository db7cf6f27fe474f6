-- Claim from these lanes again.
SELECT :schema.resume_lanes($1, $2)
