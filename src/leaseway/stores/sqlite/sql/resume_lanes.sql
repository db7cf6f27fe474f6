-- Claim from these lanes again.
DELETE FROM pauses WHERE queue = :queue AND tenant = :tenant
