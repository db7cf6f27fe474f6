-- They are held from now on, as if the reply had come.
UPDATE jobs SET until = :now + lease_us WHERE stage = 2 AND token = :token AND owner = :worker
