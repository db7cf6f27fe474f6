-- What the provider says, for the whole fleet.

-- Closed until the time given, slower once for each event, and open again with one token.
CREATE FUNCTION throttle(level levels, sized sizing, told_generation integer, retry_after_us bigint, instant bigint)
RETURNS levels LANGUAGE plpgsql AS $$
DECLARE shortest bigint := (SELECT coalesce(min(window_us), 0) FROM unnest(sized.windows) AS window_us);
BEGIN
  level.blocked_until := greatest(level.blocked_until,
                                  instant + coalesce(retry_after_us, greatest(shortest / 10, 1000000)));
  level.slowed_at := level.blocked_until;
  IF told_generation = level.generation THEN
    level.percent := greatest(level.percent * 70 / 100, 10);
    level.generation := level.generation + 1;
  END IF;
  level := paced(level, sized, instant);
  FOR place IN 1 .. cardinality(level.windows) LOOP
    level.tats[place] := greatest(level.tats[place], level.blocked_until + us(sized.bursts[place] * level.paces[place])
                                                     - us(level.paces[place]));
  END LOOP;
  RETURN level;
END $$;

-- So much is left. Less than we thought: believed. More: not. Who says when his window begins anew speaks of the
-- shortest one that lasts as long.
CREATE FUNCTION sync(level levels, sized sizing, remaining bigint, reset_us bigint, instant bigint) RETURNS levels
LANGUAGE plpgsql AS $$
DECLARE
  told bigint := (SELECT coalesce(min(window_us) FILTER (WHERE window_us >= reset_us), max(window_us))
                    FROM unnest(sized.windows) AS window_us);
  place integer := array_position(sized.windows, told);
  pace bigint := level.paces[place];
BEGIN
  IF remaining IS NOT NULL AND place IS NOT NULL THEN
    level.tats[place] := greatest(level.tats[place], instant + us(sized.bursts[place] * pace)
                                                     - us(least(remaining, sized.bursts[place]) * pace));
  END IF;
  RETURN level;
END $$;

CREATE FUNCTION tell(level_name text, limit_name text, told_generation integer, is_throttled boolean,
                     retry_after_us bigint, remaining bigint, reset_us bigint, at bigint DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
DECLARE
  level levels;
  sized sizing;
  fence_at bigint;
  instant bigint;
BEGIN
  PERFORM refuse_replica();
  sized := sizing_of(limit_name);
  -- Of a limit that was forgotten meanwhile, nothing needs to be known.
  IF sized.windows IS NULL THEN
    RETURN;
  END IF;
  level := locked_level(level_name, limit_name);
  fence_at := fence_since(at);
  instant := coalesce(at, now_us());
  level := current_level(level, sized, instant, fence_at);
  IF is_throttled THEN
    level := throttle(level, sized, told_generation, retry_after_us, instant);
  ELSE
    level := sync(level, sized, remaining, reset_us, instant);
  END IF;
  PERFORM write_level(level, instant);
END $$;
