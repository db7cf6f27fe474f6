-- Holds: money that is reserved before a call and settled after it.
--
-- A function that changes a hold locks its row first, then the windows of its lines in the order of their ids, and
-- changes them in a separate statement. Only a separate statement starts from the locked rows: PostgreSQL evaluates a
-- CHECK on the row version that the statement saw, before it notices a newer one.

CREATE FUNCTION lock_windows(ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM budget_windows WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
END $$;

CREATE FUNCTION hold_windows(hold_ids text[]) RETURNS bigint[] LANGUAGE sql STABLE AS $$
  SELECT coalesce(array_agg(DISTINCT window_id), '{}') FROM hold_lines WHERE hold = ANY (hold_ids)
$$;

-- Release what is held and book what was spent; the caller holds the locks. A settlement states costs by budget name or
-- by unit; a line that it does not mention costs what was held for it.
CREATE FUNCTION close_hold(hold_id text, state_before text, state_after text, as_kind text, instant bigint,
                           cost_names text[] DEFAULT '{}', amounts bigint[] DEFAULT '{}')
RETURNS TABLE (name text, threshold_before smallint, threshold_after smallint) LANGUAGE plpgsql AS $$
BEGIN
  UPDATE holds SET state = state_after WHERE id = hold_id;
  RETURN QUERY
  WITH costs AS (
         SELECT place, window_id, amount_micros, actual_micros, budget_windows.threshold_percent,
                CASE WHEN state_after <> 'void' THEN
                  coalesce(amounts[array_position(cost_names, budget_windows.name::text)],
                           amounts[array_position(cost_names, unit)], amount_micros) END AS cost
           FROM hold_lines JOIN budget_windows ON budget_windows.id = window_id
          WHERE hold = hold_id),
       moves AS (
         SELECT place, window_id, cost, threshold_percent, coalesce(cost, 0) - coalesce(actual_micros, 0) AS spent,
                CASE WHEN state_before IN ('held', 'dispatched') THEN -amount_micros ELSE 0 END AS held
           FROM costs),
       lines AS (
         UPDATE hold_lines SET actual_micros = moves.cost FROM moves
          WHERE hold_lines.hold = hold_id AND hold_lines.place = moves.place),
       booked AS (
         UPDATE budget_windows AS known
            SET held_micros = known.held_micros + moves.held, spent_micros = known.spent_micros + moves.spent,
                overdraft_micros = greatest(known.held_micros + moves.held + known.spent_micros + moves.spent
                                            - known.limit_micros, 0),
                threshold_percent = greatest(known.threshold_percent,
                                             threshold_reached(known.spent_micros + moves.spent, known.limit_micros))
           FROM moves WHERE known.id = moves.window_id
         RETURNING known.id, known.name, moves.threshold_percent AS threshold_before,
                   known.threshold_percent AS threshold_after, moves.place),
       written AS (
         INSERT INTO budget_journal (at, hold, window_id, kind, held_micros, spent_micros, crossed)
         SELECT instant, hold_id, moves.window_id, as_kind, moves.held, moves.spent,
                CASE WHEN booked.threshold_after > booked.threshold_before THEN booked.threshold_after ELSE 0 END
           FROM moves JOIN booked ON booked.id = moves.window_id ORDER BY moves.place)
  SELECT booked.name, booked.threshold_before, booked.threshold_after FROM booked ORDER BY booked.place;
END $$;

-- Book what a call has cost, whatever has happened to its hold. Only a second settlement is ignored.
CREATE FUNCTION settle_hold(hold_id text, cost_names text[], amounts bigint[], at bigint DEFAULT NULL)
RETURNS TABLE (name text, threshold_before smallint, threshold_after smallint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  found_state text;
  known text[];
  wrong text;
BEGIN
  SELECT state INTO found_state FROM holds WHERE id = hold_id FOR UPDATE;
  PERFORM lock_windows(hold_windows(ARRAY[hold_id]));
  SELECT array_agg(DISTINCT word ORDER BY word) INTO known
    FROM hold_lines JOIN budget_windows ON id = window_id
         CROSS JOIN LATERAL (VALUES (budget_windows.name), (unit)) AS each (word)
   WHERE hold = hold_id;
  IF known IS NULL THEN
    RAISE EXCEPTION 'hold: there is no hold %; it was never placed, or it was pruned', quote_literal(hold_id)
      USING ERRCODE = 'LW002';
  END IF;
  SELECT what INTO wrong FROM unnest(cost_names) AS each (what) WHERE what <> ALL (known) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'settle %: is not part of this hold; its budgets and units: %', wrong, array_to_string(known, ', ') USING ERRCODE = 'LW002';
  END IF;
  IF found_state = 'settled' THEN
    RETURN;
  END IF;
  RETURN QUERY SELECT * FROM close_hold(hold_id, found_state, 'settled',
    CASE WHEN found_state IN ('captured', 'void') THEN 'correct' ELSE 'settle' END, coalesce(at, now_us()),
    cost_names, amounts);
END $$;

CREATE FUNCTION void_hold(hold_id text, at bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE found_state text;
BEGIN
  SELECT state INTO found_state FROM holds WHERE id = hold_id FOR UPDATE;
  IF found_state = 'held' THEN
    PERFORM lock_windows(hold_windows(ARRAY[hold_id]));
    PERFORM close_hold(hold_id, 'held', 'void', 'void', coalesce(at, now_us()));
  END IF;
  RETURN coalesce(found_state IN ('held', 'void'), false);
END $$;

-- The check right before a call: whether the hold is still valid.
CREATE FUNCTION dispatch_hold(hold_id text, at bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  known holds;
  instant bigint;
BEGIN
  SELECT * INTO known FROM holds WHERE id = hold_id FOR UPDATE;
  instant := coalesce(at, now_us());
  IF NOT FOUND OR known.state NOT IN ('held', 'dispatched') OR instant >= known.deadline THEN
    RETURN false;
  END IF;
  IF known.state = 'held' THEN
    IF EXISTS (SELECT 1 FROM hold_lines JOIN budget_windows ON id = window_id
                WHERE hold = hold_id AND NOT (starts_at <= instant AND instant < ends_at)) THEN
      RETURN false;
    END IF;
    UPDATE holds SET state = 'dispatched', deadline = instant + ttl_us WHERE id = hold_id;
  END IF;
  RETURN true;
END $$;

-- Close holds past their deadline. A hold that was not dispatched is void; one that was dispatched may have been
-- called, so its amount is captured.
CREATE FUNCTION expire_holds(most integer, at bigint DEFAULT NULL)
RETURNS TABLE (hold text, was_dispatched boolean, name text, threshold_before smallint, threshold_after smallint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  instant bigint := coalesce(at, now_us());
  late text[];
  each holds;
BEGIN
  late := ARRAY(SELECT id FROM holds WHERE state IN ('held', 'dispatched') AND deadline <= instant
                 ORDER BY deadline, id LIMIT greatest(most, 0) FOR UPDATE SKIP LOCKED);
  IF cardinality(late) = 0 THEN
    RETURN;
  END IF;
  PERFORM lock_windows(hold_windows(late));
  FOR each IN SELECT * FROM holds WHERE id = ANY (late) ORDER BY deadline, id LOOP
    RETURN QUERY
    SELECT each.id, each.state = 'dispatched', closed.name, closed.threshold_before, closed.threshold_after
      FROM close_hold(each.id, each.state, CASE each.state WHEN 'dispatched' THEN 'captured' ELSE 'void' END,
                      CASE each.state WHEN 'dispatched' THEN 'capture' ELSE 'expire' END, instant) AS closed;
  END LOOP;
END $$;

-- The answer of hold_budgets. The client names the windows, computed from the last server time it knows; the server
-- checks with its own clock whether they are current and whether there is room.
--   held, booked, used   the answer for the caller
--   full                 no room in one of these windows: the client looks for later ones
--   again                the windows are not current, or another transaction interfered: the client asks again
--   stale                a definition has changed: the client reads the definitions again
CREATE TYPE hold_answer AS (
  answer text, instant bigint, deadline bigint, budget text, starts bigint[], ends bigint[], labels text[]
);

CREATE FUNCTION build_hold_answer(as_answer text, hold_id text, instant bigint) RETURNS hold_answer LANGUAGE sql STABLE AS $$
  SELECT as_answer, instant, (SELECT deadline FROM holds WHERE id = hold_id),
         (array_agg(name::text ORDER BY starts_at DESC, name DESC))[1], array_agg(starts_at ORDER BY place),
         array_agg(ends_at ORDER BY place), array_agg(label::text ORDER BY place)
    FROM hold_lines JOIN budget_windows ON id = window_id WHERE hold = hold_id
$$;

-- The answer for a hold that exists and is locked; NULL if it is void or expired and has to be made anew.
CREATE FUNCTION repeat_hold(known holds, new_owner text, dispatches boolean, instant bigint) RETURNS hold_answer
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
  RETURN build_hold_answer(CASE WHEN instant < start_of_last THEN 'booked' ELSE 'held' END, known.id, instant);
END $$;

-- The windows of these lines. Missing windows are created, unless the lines do not fit anyway; then fewer ids are
-- returned. Creating a window locks its definition against changes until the transaction ends, because a concurrent
-- change would not see the window and leave it with the old limit. Returns NULL if the client does not know the
-- definitions in force.
CREATE FUNCTION open_windows(names text[], budget_names text[], stamps bigint[], amounts bigint[], allowed bigint[],
                             starts bigint[], ends bigint[], labels text[])
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
  count_wanted integer := cardinality(names);
  ids bigint[];
BEGIN
  IF count_wanted <> (
    SELECT count(*) FROM unnest(names, budget_names, stamps) AS line (name, budget, stamp)
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
    PERFORM 1 FROM budgets WHERE name = ANY (names || budget_names) ORDER BY name FOR SHARE;
    IF EXISTS (
      SELECT 1 FROM unnest(names, stamps, amounts, allowed, starts, ends, labels)
                      AS line (name, stamp, amount, beyond, start, ends_at, label)
        JOIN budgets ON budgets.stamp = line.stamp
        LEFT JOIN budget_windows AS known ON (known.name, known.starts_at, known.ends_at, known.label)
                                           = (line.name, line.start, line.ends_at, line.label)
       WHERE coalesce(spent_micros + held_micros, 0) + amount
             > coalesce(known.limit_micros, budgets.limit_micros) + beyond) THEN
      RETURN ids;
    END IF;
    INSERT INTO budget_windows (name, budget, unit, starts_at, ends_at, label, limit_micros)
    SELECT line.name, budgets.name, unit, start, ends_at, label, limit_micros
      FROM unnest(names, stamps, starts, ends, labels) AS line (name, stamp, start, ends_at, label)
      JOIN budgets ON budgets.stamp = line.stamp
     ORDER BY line.name COLLATE "C", start
    ON CONFLICT DO NOTHING;
  END LOOP;
  RETURN NULL; -- a definition changed meanwhile
END $$;

CREATE FUNCTION hold_budgets(hold_id text, new_owner text, new_ttl_us bigint, dispatches boolean, is_booking boolean,
                             names text[], budget_names text[], stamps bigint[], amounts bigint[], allowed bigint[],
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
  SELECT * INTO known FROM holds WHERE id = hold_id FOR UPDATE;
  is_known := FOUND;
  instant := coalesce(at, now_us());
  IF is_known THEN
    answer := repeat_hold(known, new_owner, dispatches, instant);
    IF answer.answer IS NOT NULL THEN
      RETURN answer;
    END IF;
    IF known.state = 'held' THEN
      -- The hold has expired. It is voided alone, because locking a second set of windows could deadlock.
      PERFORM lock_windows(hold_windows(ARRAY[hold_id]));
      PERFORM close_hold(hold_id, 'held', 'void', 'expire', instant);
      RETURN ROW('again', instant, NULL, NULL, NULL, NULL, NULL)::hold_answer;
    END IF;
  END IF;
  ids := open_windows(names, budget_names, stamps, amounts, allowed, starts, ends, labels);
  IF ids IS NULL THEN
    RETURN ROW('stale', instant, NULL, NULL, NULL, NULL, NULL)::hold_answer;
  END IF;
  IF cardinality(ids) < cardinality(names) THEN
    RETURN ROW('full', instant, NULL, NULL, NULL, NULL, NULL)::hold_answer;
  END IF;
  PERFORM lock_windows(ids);
  instant := coalesce(at, now_us());
  -- A window may have been deleted before it was locked.
  IF instant >= end_at OR (instant < begin_at AND NOT is_booking)
     OR cardinality(ids) <> (SELECT count(*) FROM budget_windows WHERE id = ANY (ids)) THEN
    RETURN ROW('again', instant, NULL, NULL, NULL, NULL, NULL)::hold_answer;
  END IF;
  IF EXISTS (SELECT 1 FROM unnest(ids, amounts, allowed) AS line (id, amount, beyond) JOIN budget_windows USING (id)
              WHERE spent_micros + held_micros + amount > limit_micros + beyond) THEN
    RETURN ROW('full', instant, NULL, NULL, NULL, NULL, NULL)::hold_answer;
  END IF;
  IF NOT is_known THEN
    INSERT INTO holds (id, deadline, ttl_us, state, owner) VALUES (hold_id, 0, 0, 'void', new_owner) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
      RETURN ROW('again', instant, NULL, NULL, NULL, NULL, NULL)::hold_answer;
    END IF;
  END IF;
  PERFORM store_hold(hold_id, ids, amounts, allowed, instant);
  UPDATE holds
     SET owner = new_owner, ttl_us = new_ttl_us, deadline = greatest(instant, begin_at) + new_ttl_us,
         state = CASE WHEN dispatches AND instant >= begin_at THEN 'dispatched' ELSE 'held' END
   WHERE id = hold_id;
  RETURN build_hold_answer(CASE WHEN instant < begin_at THEN 'booked' ELSE 'held' END, hold_id, instant);
END $$;

-- Write the lines of a hold into their locked windows. The CHECK constraint of the window rejects an overspent one.
CREATE FUNCTION store_hold(hold_id text, ids bigint[], amounts bigint[], allowed bigint[], instant bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM hold_lines WHERE hold = hold_id;
  INSERT INTO hold_lines (hold, place, window_id, amount_micros)
  SELECT hold_id, place, id, amount FROM unnest(ids, amounts) WITH ORDINALITY AS line (id, amount, place);
  UPDATE budget_windows AS known
     SET held_micros = held_micros + line.amount,
         overdraft_micros = greatest(overdraft_micros,
                                     least(spent_micros + held_micros + line.amount - limit_micros, line.beyond))
    FROM unnest(ids, amounts, allowed) AS line (id, amount, beyond) WHERE known.id = line.id;
  INSERT INTO budget_journal (at, hold, window_id, kind, held_micros, spent_micros)
  SELECT instant, hold_id, id, 'hold', amount, 0
    FROM unnest(ids, amounts) WITH ORDINALITY AS line (id, amount, place) ORDER BY place;
END $$;
