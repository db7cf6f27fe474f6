-- Delete the virtual times of flows without lanes.
DELETE FROM flows
 WHERE NOT EXISTS (SELECT 1 FROM lanes WHERE lanes.queue = flows.queue AND lanes.tenant = flows.tenant)
