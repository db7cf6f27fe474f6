-- What was taken and is no longer needed. Of limits that were forgotten meanwhile nothing needs to be said.

CREATE FUNCTION known_among(names text[], limit_names text[]) RETURNS SETOF integer LANGUAGE sql AS $$
  SELECT place::integer FROM unnest(names, limit_names) WITH ORDINALITY AS asked (name, limit_name, place)
   WHERE EXISTS (SELECT 1 FROM limits WHERE limits.name = asked.limit_name)
   ORDER BY asked.name COLLATE "C"
$$;

-- Tokens that were not used are worth less with every moment: had they never been taken, the bucket might have been
-- full and refilled nothing. After a refusal none come back: it was to reopen with one token.
CREATE FUNCTION credited(level levels, sized sizing, units bigint, age_us bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE worth_us numeric;
BEGIN
  FOR place IN 1 .. cardinality(level.windows) LOOP
    CONTINUE WHEN level.windows[place] <> ALL (sized.windows);
    -- A new definition may have made the pace much longer. Worth that no bucket ever holds makes no difference.
    worth_us := least(div(units::numeric * level.paces[place], 1000), 9007199254740992) - age_us;
    level.tats[place] := level.tats[place] - greatest(worth_us, 0)::bigint;
  END LOOP;
  RETURN level.tats;
END $$;

CREATE FUNCTION give_back(names text[], limit_names text[], costs bigint[], unused bigint, taken_at bigint,
                          taken_since bigint, taken_generations integer[], at bigint DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
DECLARE
  place integer;
  level levels;
  held levels[];
  sized sizing;
  age_us bigint;
BEGIN
  PERFORM refuse_replica();
  FOR place IN SELECT known_among(names, limit_names) LOOP
    SELECT * INTO level FROM levels WHERE of_limit = limit_names[place] AND name = names[place] FOR UPDATE;
    IF FOUND AND level.since = taken_since AND level.generation = taken_generations[place] THEN
      held[place] := level;
    END IF;
  END LOOP;
  age_us := coalesce(at, now_us()) - taken_at;
  FOR place IN 1 .. cardinality(names) LOOP
    level := held[place];
    sized := sizing_of(limit_names[place]);
    CONTINUE WHEN age_us < 0 OR level.name IS NULL OR sized.windows IS NULL;
    UPDATE levels SET tats = credited(level, sized, unused * costs[place], age_us)
     WHERE of_limit = level.of_limit AND name = level.name;
  END LOOP;
END $$;

-- Leave so many seats of each limit.
CREATE FUNCTION vacate(names text[], limit_names text[], old_holder text, seats_left bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
DECLARE place integer;
BEGIN
  PERFORM refuse_replica();
  FOR place IN SELECT known_among(names, limit_names) LOOP
    PERFORM FROM levels WHERE of_limit = limit_names[place] AND name = names[place] FOR UPDATE;
    DELETE FROM seats
     WHERE of_limit = limit_names[place] AND name = names[place] AND holder = old_holder AND count <= seats_left;
    UPDATE seats SET count = count - seats_left
     WHERE of_limit = limit_names[place] AND name = names[place] AND holder = old_holder;
  END LOOP;
END $$;

-- Calls that are under way are a fact: so many seats are this holder's, whatever was known of them before.
CREATE FUNCTION keep(names text[], limit_names text[], sitting_holder text, seats_kept bigint, seat_us bigint,
                     at bigint DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
DECLARE
  place integer;
  level levels;
  held levels[];
  sized sizing;
  fence_at bigint;
  instant bigint;
BEGIN
  PERFORM refuse_replica();
  FOR place IN SELECT known_among(names, limit_names) LOOP
    held[place] := locked_level(names[place], limit_names[place]);
  END LOOP;
  fence_at := fence_since(at);
  instant := coalesce(at, now_us());
  FOR place IN 1 .. cardinality(names) LOOP
    level := held[place];
    sized := sizing_of(limit_names[place]);
    CONTINUE WHEN level.name IS NULL OR sized.windows IS NULL;
    level := current_level(level, sized, instant, fence_at);
    level.seated := true;
    PERFORM write_level(level, instant);
    INSERT INTO seats AS known (of_limit, name, holder, count, until, since)
    VALUES (level.of_limit, level.name, sitting_holder, seats_kept, instant + seat_us, fence_at)
    ON CONFLICT (of_limit, name, holder) DO UPDATE SET count = excluded.count, until = excluded.until;
  END LOOP;
END $$;
