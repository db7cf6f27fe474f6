-- Every lane with its counters.
SELECT queue, tenant, needs, ready, scheduled, leased, done, failed, cancelled FROM lanes ORDER BY queue, tenant, needs
