INSERT INTO holds (id, state, owner, ttl_us, deadline) VALUES (:id, :state, :owner, :ttl_us, :deadline)
ON CONFLICT (id) DO UPDATE
   SET state = excluded.state, owner = excluded.owner, ttl_us = excluded.ttl_us, deadline = excluded.deadline
