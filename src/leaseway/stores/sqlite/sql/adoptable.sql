-- The leases that an earlier try of this claim was granted, in the columns of claimable.sql. Its reply was lost.
SELECT json_group_array(json_array(seq, id, fence, kind, payload, attempts, attempts_max, lease_us, timeout_us, shard_key,
                                   cursor, priority, lane))
  FROM (SELECT * FROM jobs WHERE state = 'leased' AND token = :token AND owner = :worker ORDER BY seq LIMIT :limit)
