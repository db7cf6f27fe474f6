-- For people: each level as it stands now. Changes nothing; without a fence, everything was empty just now.

CREATE TYPE looked AS (
  instant bigint,
  since bigint,
  blocked_until bigint,
  percent integer,
  generation integer,
  slowed_at bigint,
  windows bigint[],
  tats bigint[],
  turns bigint[],
  paces bigint[],
  holders text[],
  counts bigint[],
  untils bigint[]
);

CREATE FUNCTION look(names text[], limit_names text[], at bigint DEFAULT NULL) RETURNS SETOF looked
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
DECLARE
  instant bigint;
  fence_at bigint;
  level levels;
  sized sizing;
BEGIN
  PERFORM refuse_replica();
  instant := coalesce(at, now_us());
  fence_at := coalesce((SELECT since FROM fence WHERE made_in = tableoid), instant);
  FOR place IN 1 .. cardinality(names) LOOP
    sized := sizing_of(limit_names[place]);
    PERFORM refuse_unknown(limit_names[place], sized);
    SELECT * INTO level FROM levels WHERE of_limit = limit_names[place] AND name = names[place];
    IF NOT FOUND THEN
      level := (names[place], limit_names[place], -1, 0, 100, 0, 0, false, '{}', '{}', '{}', '{}');
    END IF;
    level := current_level(level, sized, instant, fence_at);
    RETURN QUERY
    SELECT instant, level.since, level.blocked_until, level.percent, level.generation, level.slowed_at, level.windows,
           level.tats, level.turns, level.paces, array_agg(seats.holder ORDER BY seats.holder),
           array_agg(seats.count ORDER BY seats.holder), array_agg(seats.until ORDER BY seats.holder)
      FROM seats
     WHERE seats.of_limit = level.of_limit AND seats.name = level.name AND seats.until > instant
       AND seats.since = level.since;
  END LOOP;
END $$;
