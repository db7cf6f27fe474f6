-- Rows are read in the order in which they were inserted, so many at once, and each of them is in one line of the answer.
-- A cell is one number, since one is sorted in half the time that three take.
SELECT CASE WHEN is_placed THEN
         (min(CAST((latitude + 90) / :degrees AS INTEGER), :high - 1) * :wide
          + min(CAST((longitude + 180) / :degrees AS INTEGER), :wide - 1)) * 2 + (run = :run)
       END AS cell,
       count(*),
       max(place)
  FROM (SELECT place, run, latitude, longitude,
               -- Texts are larger than all numbers, and so they lie nowhere.
               source = :source AND deleted_at IS NULL
               AND latitude BETWEEN -90 AND 90 AND longitude BETWEEN -180 AND 180 AS is_placed
          FROM (SELECT _rowid_ AS place, source, run, deleted_at, :latitude AS latitude, :longitude AS longitude
                  FROM :table
                 WHERE _rowid_ > :after
                 ORDER BY _rowid_
                 LIMIT :rows_max))
 GROUP BY 1
