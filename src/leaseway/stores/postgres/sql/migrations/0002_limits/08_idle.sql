-- A limit with a field has a level for every value that was ever seen: "maps:{tenant}". Those that nobody uses any more
-- are forgotten by those who add new ones, a few each time, so that they cannot pile up.

-- Whether nobody could tell this level from one that was never seen. It must have been so for longer than the longest
-- window that there can be: a rate that is added later would otherwise start full, although its window saw calls.
CREATE FUNCTION is_idle(level levels, sized sizing, instant bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  before CONSTANT bigint := instant - 31 * 86400000000;
  unseen levels := level;
BEGIN
  IF level.percent < 100 OR level.generation > 0 OR level.since > before OR level.blocked_until > before
     OR before < ANY (level.tats || level.turns) OR NOT sized.windows <@ level.windows THEN
    RETURN false;
  END IF;
  unseen.windows := '{}';
  unseen := paced(unseen, sized, instant);
  RETURN before >= ALL (unseen.tats)
         AND NOT EXISTS (SELECT 1 FROM seats
                          WHERE of_limit = level.of_limit AND name = level.name AND until > before);
END $$;

CREATE FUNCTION forget_idle(newcomer text, instant bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  level levels;
  sized sizing;
BEGIN
  -- Whoever is in use is passed over, and nobody is waited for.
  FOR level IN
    SELECT * FROM levels WHERE hashtext(name) > hashtext(newcomer) ORDER BY hashtext(name) LIMIT 4
       FOR UPDATE SKIP LOCKED
  LOOP
    sized := sizing_of(level.of_limit);
    -- Without a fence it is as new: whoever made it was refused.
    IF sized.windows IS NULL OR level.since = -1 OR is_idle(level, sized, instant) THEN
      DELETE FROM seats WHERE of_limit = level.of_limit AND name = level.name;
      DELETE FROM levels WHERE of_limit = level.of_limit AND name = level.name;
    END IF;
  END LOOP;
END $$;
