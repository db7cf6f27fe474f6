-- Reads a number of rows in the order of their insertion, each counted in one line of the result. A cell is one number,
-- because one number is sorted in half the time of three.
SELECT CASE WHEN is_placed THEN
         (min(CAST((latitude + 90) / :degrees AS INTEGER), :high - 1) * :wide
          + min(CAST((longitude + 180) / :degrees AS INTEGER), :wide - 1)) * 2 + (run = :run)
       END AS cell,
       count(*),
       max(place)
  FROM (SELECT place, run, latitude, longitude,
               -- Texts compare greater than all numbers, so they have no position.
               source = :source AND deleted_at IS NULL
               AND latitude BETWEEN -90 AND 90 AND longitude BETWEEN -180 AND 180 AS is_placed
          FROM (SELECT _rowid_ AS place, source, run, deleted_at, :latitude AS latitude, :longitude AS longitude
                  FROM :table
                 WHERE _rowid_ > :after
                 ORDER BY _rowid_
                 LIMIT :rows_max))
 GROUP BY 1
