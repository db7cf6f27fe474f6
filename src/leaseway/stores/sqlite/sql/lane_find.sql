-- The number of a lane.
SELECT id FROM lanes WHERE queue = :queue AND tenant = :tenant AND needs = :needs
