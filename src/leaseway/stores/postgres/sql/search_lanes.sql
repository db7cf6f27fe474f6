-- Which lanes fit, and how many living jobs would have to be gone through: ready ones are found by their lane, the
-- others only by their stage. $1 queue and $2 tenant; NULL: any.
SELECT coalesce(array_agg(id) FILTER (WHERE fits), '{}'), coalesce(sum(ready) FILTER (WHERE fits), 0),
       coalesce(sum(scheduled), 0), coalesce(sum(leased), 0)
  FROM (SELECT *, ($1::text IS NULL OR queue = $1) AND ($2::text IS NULL OR tenant = $2) AS fits
          FROM :schema.lane_counts) AS lanes
