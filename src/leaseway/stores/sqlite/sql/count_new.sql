-- What was inserted behind a row, by lane and stage.
SELECT lane, stage, count(*) FROM jobs WHERE seq > :last GROUP BY lane, stage
