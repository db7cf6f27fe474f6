-- Renew the leases of an earlier try of this claim, as if its reply had arrived.
UPDATE jobs SET until = :now + min(max(lease_us, :lease_us_min), :lease_us_max)
 WHERE state = 'leased' AND token = :token AND owner = :worker
