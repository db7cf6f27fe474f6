-- Renew the leases of an earlier try of this claim, as if its reply had arrived.
UPDATE jobs SET until = :now + lease_us WHERE state = 'leased' AND token = :token AND owner = :worker
