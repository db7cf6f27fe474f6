-- They are held from now on, as if the reply had come.
UPDATE jobs SET until = :now + lease_us WHERE state = 'leased' AND token = :token AND owner = :worker
