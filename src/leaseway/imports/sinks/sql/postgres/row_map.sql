-- Reads a range of blocks, in the physical order of the table. Every row of these blocks is counted in one line of the
-- result, whichever plan the server chooses.
SELECT CASE WHEN is_placed THEN
         (least(floor((latitude + 90) / :degrees)::int, :high - 1) * :wide
          + least(floor((longitude + 180) / :degrees)::int, :wide - 1)) * 2 + (run = :run)::int
       END AS cell,
       count(*),
       max(place)::text
  FROM (SELECT place, run, latitude, longitude,
               source = :source AND deleted_at IS NULL
               AND coalesce(latitude BETWEEN -90 AND 90 AND longitude BETWEEN -180 AND 180, false) AS is_placed
          FROM (SELECT ctid AS place, source, run, deleted_at,
                       (:latitude)::double precision AS latitude, (:longitude)::double precision AS longitude
                  FROM :table
                 WHERE ctid > CAST(:after AS text)::tid AND ctid < CAST(:until AS text)::tid) AS read) AS judged
 GROUP BY 1
