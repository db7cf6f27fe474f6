-- The lanes that match a search, and how many unfinished jobs each way of searching would visit: ready jobs are found
-- by lane, scheduled and leased ones only by state. $1 queue, $2 tenant; NULL: any.
SELECT coalesce(array_agg(id) FILTER (WHERE fits), '{}'), coalesce(sum(ready) FILTER (WHERE fits), 0),
       coalesce(sum(scheduled), 0), coalesce(sum(leased), 0)
  FROM (SELECT *, ($1::text IS NULL OR queue = $1) AND ($2::text IS NULL OR tenant = $2) AS fits
          FROM :schema.lane_counts) AS lanes
