-- Holding. The client says in which windows, computed from the time that the server told it last; the server decides by
-- its own clock whether these are the right ones, and whether there is room. Its answers:
--   held, booked, used     as they are
--   full                   no room in one of these windows: the client looks for later ones
--   again                  these windows are not those of now, or somebody else was faster: the client asks again
--   stale                  a definition has changed: the client reads them anew

CREATE TYPE hold_answer AS (
  answer text, instant bigint, deadline bigint, budget text, starts bigint[], ends bigint[], labels text[]
);

CREATE FUNCTION answer_hold(as_answer text, called text, instant bigint) RETURNS hold_answer LANGUAGE sql STABLE AS $$
  SELECT as_answer, instant, (SELECT deadline FROM holds WHERE id = called),
         (array_agg(name::text ORDER BY starts_at DESC, name DESC))[1], array_agg(starts_at ORDER BY place),
         array_agg(ends_at ORDER BY place), array_agg(label::text ORDER BY place)
    FROM hold_lines JOIN budget_windows ON id = window_id WHERE hold = called
$$;

-- The answer for an id that is known, whose row is locked. None: what was held is void, or should be; hold anew.
CREATE FUNCTION hold_again(known holds, new_owner text, dispatches boolean, instant bigint) RETURNS hold_answer
LANGUAGE plpgsql AS $$
DECLARE
  start_of_last bigint;
  end_of_first bigint;
BEGIN
  SELECT max(starts_at), min(ends_at) INTO start_of_last, end_of_first
    FROM hold_lines JOIN budget_windows ON id = window_id WHERE hold = known.id;
  IF known.state = 'void' OR start_of_last IS NULL
     OR (known.state = 'held' AND (instant >= known.deadline OR instant >= end_of_first)) THEN
    RETURN NULL;
  END IF;
  IF known.state <> 'held'
     AND NOT (known.state = 'dispatched' AND known.owner = new_owner AND instant < known.deadline) THEN
    RETURN ROW('used', instant, NULL, NULL, NULL, NULL, NULL)::hold_answer;
  END IF;
  IF known.state = 'held' AND dispatches AND instant >= start_of_last THEN
    UPDATE holds SET state = 'dispatched', owner = new_owner, deadline = instant + ttl_us WHERE id = known.id;
  ELSIF known.owner <> new_owner THEN
    UPDATE holds SET owner = new_owner WHERE id = known.id;
  END IF;
  RETURN answer_hold(CASE WHEN instant < start_of_last THEN 'booked' ELSE 'held' END, known.id, instant);
END $$;

-- The windows of these lines. Those that are missing are made, unless the lines do not fit anyway: then there are fewer.
-- Whoever makes one keeps its definition from being changed until he is done: a window with an old limit would be seen
-- by nobody. None: the client does not know the definitions of now.
CREATE FUNCTION open_windows(names text[], budgets_of text[], stamps bigint[], amounts bigint[], allowed bigint[],
                             starts bigint[], ends bigint[], labels text[])
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
  count_wanted integer := cardinality(names);
  ids bigint[];
BEGIN
  IF count_wanted <> (
    SELECT count(*) FROM unnest(names, budgets_of, stamps) AS line (name, budget, stamp)
     WHERE stamp = (SELECT budgets.stamp FROM budgets WHERE budgets.name IN (line.name, line.budget)
                     ORDER BY budgets.name = line.name DESC LIMIT 1)) THEN
    RETURN NULL;
  END IF;
  FOR attempt IN 1..2 LOOP
    SELECT coalesce(array_agg(known.id ORDER BY line.place), '{}') INTO ids
      FROM unnest(names, starts, ends, labels) WITH ORDINALITY AS line (name, start, ends_at, label, place)
      JOIN budget_windows AS known ON (known.name, known.starts_at, known.ends_at, known.label)
                                    = (line.name, line.start, line.ends_at, line.label);
    IF cardinality(ids) = count_wanted THEN
      RETURN ids;
    END IF;
    PERFORM 1 FROM budgets WHERE name = ANY (names || budgets_of) ORDER BY name FOR SHARE;
    IF EXISTS (
      SELECT 1 FROM unnest(names, stamps, amounts, allowed, starts, ends, labels)
                      AS line (name, stamp, amount, beyond, start, ends_at, label)
        JOIN budgets ON budgets.stamp = line.stamp
        LEFT JOIN budget_windows AS known ON (known.name, known.starts_at, known.ends_at, known.label)
                                           = (line.name, line.start, line.ends_at, line.label)
       WHERE coalesce(spent_micros + held_micros, 0) + amount > coalesce(known.limit_micros, budgets.limit_micros) + beyond) THEN
      RETURN ids;
    END IF;
    INSERT INTO budget_windows (name, budget, unit, starts_at, ends_at, label, limit_micros)
    SELECT line.name, budgets.name, unit, start, ends_at, label, limit_micros
      FROM unnest(names, stamps, starts, ends, labels) AS line (name, stamp, start, ends_at, label)
      JOIN budgets ON budgets.stamp = line.stamp
     ORDER BY line.name COLLATE "C", start
    ON CONFLICT DO NOTHING;
  END LOOP;
  RETURN NULL; -- a definition has changed just now
END $$;

CREATE FUNCTION hold_budgets(called text, new_owner text, new_ttl_us bigint, dispatches boolean, is_booking boolean,
                             names text[], budgets_of text[], stamps bigint[], amounts bigint[], allowed bigint[],
                             starts bigint[], ends bigint[], labels text[], at bigint DEFAULT NULL)
RETURNS hold_answer LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  known holds;
  is_known boolean;
  answer hold_answer;
  ids bigint[];
  instant bigint;
  begin_at bigint := (SELECT max(start) FROM unnest(starts) AS each (start));
  end_at bigint := (SELECT min(till) FROM unnest(ends) AS each (till));
BEGIN
  SELECT * INTO known FROM holds WHERE id = called FOR UPDATE;
  is_known := FOUND;
  instant := coalesce(at, now_us());
  IF is_known THEN
    answer := hold_again(known, new_owner, dispatches, instant);
    IF answer.answer IS NOT NULL THEN
      RETURN answer;
    END IF;
    IF known.state = 'held' THEN
      -- Too late for what was held. It is freed first, alone: two sets of windows would be locked out of order.
      PERFORM lock_windows(windows_of(ARRAY[called]));
      PERFORM close_hold(called, 'held', 'void', 'expire', instant);
      RETURN ROW('again', instant, NULL, NULL, NULL, NULL, NULL)::hold_answer;
    END IF;
  END IF;
  ids := open_windows(names, budgets_of, stamps, amounts, allowed, starts, ends, labels);
  IF ids IS NULL THEN
    RETURN ROW('stale', instant, NULL, NULL, NULL, NULL, NULL)::hold_answer;
  END IF;
  IF cardinality(ids) < cardinality(names) THEN
    RETURN ROW('full', instant, NULL, NULL, NULL, NULL, NULL)::hold_answer;
  END IF;
  PERFORM lock_windows(ids);
  instant := coalesce(at, now_us());
  -- A window that was dropped before it was locked is gone.
  IF instant >= end_at OR (instant < begin_at AND NOT is_booking)
     OR cardinality(ids) <> (SELECT count(*) FROM budget_windows WHERE id = ANY (ids)) THEN
    RETURN ROW('again', instant, NULL, NULL, NULL, NULL, NULL)::hold_answer;
  END IF;
  IF EXISTS (SELECT 1 FROM unnest(ids, amounts, allowed) AS line (id, amount, beyond) JOIN budget_windows USING (id)
              WHERE spent_micros + held_micros + amount > limit_micros + beyond) THEN
    RETURN ROW('full', instant, NULL, NULL, NULL, NULL, NULL)::hold_answer;
  END IF;
  IF NOT is_known THEN
    INSERT INTO holds (id, deadline, ttl_us, state, owner) VALUES (called, 0, 0, 'void', new_owner) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
      RETURN ROW('again', instant, NULL, NULL, NULL, NULL, NULL)::hold_answer;
    END IF;
  END IF;
  PERFORM write_hold(called, ids, amounts, allowed, instant);
  UPDATE holds
     SET owner = new_owner, ttl_us = new_ttl_us, deadline = greatest(instant, begin_at) + new_ttl_us,
         state = CASE WHEN dispatches AND instant >= begin_at THEN 'dispatched' ELSE 'held' END
   WHERE id = called;
  RETURN answer_hold(CASE WHEN instant < begin_at THEN 'booked' ELSE 'held' END, called, instant);
END $$;

-- The lines of a hold, in their windows, which are locked. If the decision before was wrong, the CHECK refuses it.
CREATE FUNCTION write_hold(called text, ids bigint[], amounts bigint[], allowed bigint[], instant bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM hold_lines WHERE hold = called;
  INSERT INTO hold_lines (hold, place, window_id, amount_micros)
  SELECT called, place, id, amount FROM unnest(ids, amounts) WITH ORDINALITY AS line (id, amount, place);
  UPDATE budget_windows AS known
     SET held_micros = held_micros + line.amount,
         overdraft_micros = greatest(overdraft_micros,
                                     least(spent_micros + held_micros + line.amount - limit_micros, line.beyond))
    FROM unnest(ids, amounts, allowed) AS line (id, amount, beyond) WHERE known.id = line.id;
  INSERT INTO budget_journal (at, hold, window_id, kind, held_micros, spent_micros)
  SELECT instant, called, id, 'hold', amount, 0
    FROM unnest(ids, amounts) WITH ORDINALITY AS line (id, amount, place) ORDER BY place;
END $$;
