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
                           cost_names text[] DEFAULT '{}', amounts bigint[] DEFAULT '{}',
                           corrector text DEFAULT NULL, given_reason text DEFAULT NULL)
RETURNS TABLE (name text, threshold_before smallint, threshold_after smallint) LANGUAGE plpgsql AS $$
BEGIN
  UPDATE holds SET state = state_after, corrected_by = corrector WHERE id = hold_id;
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
                CASE WHEN corrector IS NOT NULL THEN actual_micros END AS from_micros,
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
         INSERT INTO budget_journal (at, hold, window_id, kind, held_micros, spent_micros, crossed, corrected_by, reason,
                                     from_micros)
         SELECT instant, hold_id, moves.window_id, as_kind, moves.held, moves.spent,
                CASE WHEN booked.threshold_after > booked.threshold_before THEN booked.threshold_after ELSE 0 END,
                corrector, given_reason, moves.from_micros
           FROM moves JOIN booked ON booked.id = moves.window_id ORDER BY moves.place)
  SELECT booked.name, booked.threshold_before, booked.threshold_after FROM booked ORDER BY booked.place;
END $$;

-- The budgets and units of a hold. An unknown hold, and a cost that names none of them, is an error.
CREATE FUNCTION check_costs(hold_id text, cost_names text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  known text[];
  wrong text;
BEGIN
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
    RAISE EXCEPTION 'settle %: is not part of this hold; its budgets and units: %', wrong, array_to_string(known, ', ')
      USING ERRCODE = 'LW002';
  END IF;
END $$;

-- Book what a call has cost, whatever has happened to its hold. Only a second settlement is ignored, and one by another
-- owner than the hold's.
CREATE FUNCTION settle_hold(hold_id text, cost_names text[], amounts bigint[], by_owner text DEFAULT NULL,
                            at bigint DEFAULT NULL)
RETURNS TABLE (name text, threshold_before smallint, threshold_after smallint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  found_state text;
  found_owner text;
BEGIN
  SELECT state, owner INTO found_state, found_owner FROM holds WHERE id = hold_id FOR UPDATE;
  PERFORM lock_windows(hold_windows(ARRAY[hold_id]));
  PERFORM check_costs(hold_id, cost_names);
  IF found_state = 'settled' OR by_owner <> found_owner THEN
    RETURN;
  END IF;
  RETURN QUERY SELECT * FROM close_hold(hold_id, found_state, 'settled',
    CASE WHEN found_state IN ('captured', 'void') THEN 'correct' ELSE 'settle' END, coalesce(at, now_us()),
    cost_names, amounts);
END $$;

-- Replace a captured amount by the one that the provider has charged, once. A call whose hold is past its deadline is
-- captured first. Returns the state and the corrector before the call, and the lines with the amount of each; the client
-- refuses a hold in any other state, or one that was corrected with other amounts.
CREATE FUNCTION correct_hold(hold_id text, cost_names text[], amounts bigint[], corrector text, given_reason text,
                             at bigint DEFAULT NULL)
RETURNS TABLE (state_before text, corrected_before text, name text, unit text, label text, held_before bigint,
               actual bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  known holds;
  instant bigint;
BEGIN
  SELECT * INTO known FROM holds WHERE id = hold_id FOR UPDATE;
  PERFORM lock_windows(hold_windows(ARRAY[hold_id]));
  PERFORM check_costs(hold_id, cost_names);
  instant := coalesce(at, now_us());
  IF known.state = 'dispatched' AND known.deadline <= instant THEN
    PERFORM close_hold(hold_id, 'dispatched', 'captured', 'capture', instant);
    known.state := 'captured';
  END IF;
  IF known.state = 'captured' THEN
    PERFORM close_hold(hold_id, 'captured', 'settled', 'correct', instant, cost_names, amounts, corrector, given_reason);
  END IF;
  RETURN QUERY
  SELECT known.state, known.corrected_by, budget_windows.name::text, budget_windows.unit, budget_windows.label::text,
         amount_micros, actual_micros
    FROM hold_lines JOIN budget_windows ON id = window_id WHERE hold = hold_id ORDER BY place;
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
  IF NOT FOUND OR known.state NOT IN ('held', 'dispatched')
     OR instant >= known.deadline + expiry_grace_us() THEN
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
  late_at bigint := instant - expiry_grace_us();
  late text[];
  each holds;
BEGIN
  late := ARRAY(SELECT id FROM holds WHERE state IN ('held', 'dispatched') AND deadline <= late_at
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
-- checks with its own clock whether they are current and whether there is room. A hold that is booked moves to the
-- windows that the client names, if they are earlier and have room.
--   held, booked, used   the answer for the caller
--   full                 no room in one of these windows: the client looks for later ones
--   again                the windows are not current, or another transaction interfered: the client asks again
--   stale                a definition has changed: the client reads the definitions again
CREATE TYPE hold_answer AS (
  answer text, instant bigint, deadline bigint, budget text, names text[], starts bigint[], ends bigint[], labels text[]
);

CREATE FUNCTION short_answer(as_answer text, instant bigint) RETURNS hold_answer LANGUAGE sql IMMUTABLE RETURN
  ROW(as_answer, instant, NULL, NULL, NULL, NULL, NULL, NULL)::hold_answer;

CREATE FUNCTION build_hold_answer(as_answer text, hold_id text, instant bigint) RETURNS hold_answer LANGUAGE sql STABLE AS $$
  SELECT as_answer, instant, (SELECT deadline FROM holds WHERE id = hold_id),
         (array_agg(name::text ORDER BY starts_at DESC, name DESC))[1], array_agg(name::text ORDER BY place),
         array_agg(starts_at ORDER BY place), array_agg(ends_at ORDER BY place), array_agg(label::text ORDER BY place)
    FROM hold_lines JOIN budget_windows ON id = window_id WHERE hold = hold_id
$$;

-- Whether a hold has exactly these lines. A paused budget is asked for more than any window has, which says nothing about
-- the cost.
CREATE FUNCTION has_amounts(hold_id text, names text[], amounts bigint[]) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT count(*) = cardinality(names)
         AND coalesce(bool_and(amount > 10000000000000000 OR amount = amount_micros), true)
    FROM hold_lines JOIN budget_windows AS known ON known.id = window_id
    JOIN unnest(names, amounts) AS line (name, amount) ON line.name = known.name
   WHERE hold = hold_id
$$;

-- The answer for a hold that exists and is locked; NULL if it is void or expired and has to be made anew.
CREATE FUNCTION repeat_hold(known holds, new_owner text, dispatches boolean, instant bigint) RETURNS hold_answer
LANGUAGE plpgsql AS $$
DECLARE
  late_at bigint := instant - expiry_grace_us();
  start_of_last bigint;
  end_of_first bigint;
BEGIN
  SELECT max(starts_at), min(ends_at) INTO start_of_last, end_of_first
    FROM hold_lines JOIN budget_windows ON id = window_id WHERE hold = known.id;
  IF known.state = 'void' OR start_of_last IS NULL
     OR (known.state = 'held' AND (late_at >= known.deadline OR instant >= end_of_first)) THEN
    RETURN NULL;
  END IF;
  IF known.state <> 'held'
     AND NOT (known.state = 'dispatched' AND known.owner = new_owner AND late_at < known.deadline) THEN
    RETURN short_answer('used', instant);
  END IF;
  IF known.state = 'held' AND dispatches AND instant >= start_of_last THEN
    UPDATE holds SET state = 'dispatched', owner = new_owner, deadline = instant + ttl_us WHERE id = known.id;
  ELSIF known.owner <> new_owner THEN
    UPDATE holds SET owner = new_owner WHERE id = known.id;
  END IF;
  RETURN build_hold_answer(CASE WHEN instant < start_of_last THEN 'booked' ELSE 'held' END, known.id, instant);
END $$;

-- What a hold that is open has reserved in a window.
CREATE FUNCTION own_amount(hold_id text, of_window bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT coalesce(sum(amount_micros), 0)::bigint FROM hold_lines WHERE hold = hold_id AND window_id = of_window
$$;

-- The windows of these lines. Missing windows are created, unless the lines do not fit anyway; then fewer ids are
-- returned. Creating a window locks its definition against changes until the transaction ends, because a concurrent
-- change would not see the window and leave it with the old limit. Returns NULL if the client does not know the
-- definitions in force. `moving`: the hold that is to move into these windows; its own amounts do not count.
CREATE FUNCTION open_windows(names text[], budget_names text[], stamps bigint[], amounts bigint[], allowed bigint[],
                             starts bigint[], ends bigint[], labels text[], moving text)
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
       WHERE coalesce(spent_micros + held_micros, 0) - own_amount(moving, known.id) + amount
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
  moving text; -- the hold, if it is booked and the client asks for an earlier window
  ids bigint[];
  instant bigint;
  begin_at bigint := (SELECT max(start) FROM unnest(starts) AS each (start));
  end_at bigint := (SELECT min(till) FROM unnest(ends) AS each (till));
BEGIN
  SELECT * INTO known FROM holds WHERE id = hold_id FOR UPDATE;
  is_known := FOUND;
  instant := coalesce(at, now_us());
  IF is_known THEN
    IF known.state <> 'held' OR has_amounts(hold_id, names, amounts) THEN
      answer := repeat_hold(known, new_owner, dispatches, instant);
      IF answer.answer = 'booked' AND begin_at < (SELECT max(start) FROM unnest(answer.starts) AS each (start)) THEN
        moving := hold_id;
      ELSIF answer.answer IS NOT NULL THEN
        RETURN answer;
      END IF;
    END IF;
    IF known.state = 'held' AND moving IS NULL THEN
      -- The hold has expired, or it was booked for another cost. It is voided alone, because locking a second set of windows could deadlock.
      PERFORM lock_windows(hold_windows(ARRAY[hold_id]));
      PERFORM close_hold(hold_id, 'held', 'void', 'expire', instant);
      RETURN short_answer('again', instant);
    END IF;
  END IF;
  ids := open_windows(names, budget_names, stamps, amounts, allowed, starts, ends, labels, moving);
  IF ids IS NULL THEN
    RETURN short_answer('stale', instant);
  END IF;
  IF cardinality(ids) < cardinality(names) THEN
    RETURN CASE WHEN moving IS NULL THEN short_answer('full', instant) ELSE answer END;
  END IF;
  PERFORM lock_windows(CASE WHEN moving IS NULL THEN ids ELSE ids || hold_windows(ARRAY[moving]) END);
  instant := coalesce(at, now_us());
  -- A window may have been deleted before it was locked.
  IF instant >= end_at OR (instant < begin_at AND NOT is_booking)
     OR cardinality(ids) <> (SELECT count(*) FROM budget_windows WHERE id = ANY (ids)) THEN
    RETURN short_answer('again', instant);
  END IF;
  IF EXISTS (SELECT 1 FROM unnest(ids, amounts, allowed) AS line (id, amount, beyond) JOIN budget_windows USING (id)
              WHERE spent_micros + held_micros - own_amount(moving, id) + amount > limit_micros + beyond) THEN
    RETURN CASE WHEN moving IS NULL THEN short_answer('full', instant) ELSE answer END;
  END IF;
  IF moving IS NOT NULL THEN
    PERFORM close_hold(hold_id, 'held', 'void', 'rebook', instant);
  END IF;
  IF NOT is_known THEN
    INSERT INTO holds (id, deadline, ttl_us, state, owner) VALUES (hold_id, 0, 0, 'void', new_owner) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
      RETURN short_answer('again', instant);
    END IF;
  END IF;
  PERFORM store_hold(hold_id, ids, amounts, allowed, instant);
  UPDATE holds
     SET owner = new_owner, ttl_us = new_ttl_us, corrected_by = NULL,
         -- A booked hold waits ten minutes for its job after its window has begun.
         deadline = CASE WHEN instant < begin_at THEN begin_at + greatest(new_ttl_us, 600000000)
                         ELSE instant + new_ttl_us END,
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

-- Settle and hold for several calls in one transaction, by the rules of settle_hold and hold_budgets. Only requests that
-- need one step are answered: settlements of known holds, and new holds that fit into current windows that exist. Every
-- other request has no effect, and the client makes it by itself.
--
-- Locks are taken in the order of all functions here: holds by id, then windows by id. No window is created, because
-- that locks a definition. `cost_of` and `line_of` say to which request a cost or a line belongs, counted from 1.
CREATE TYPE post_answer AS (
  instant bigint, are_settled boolean[], are_held boolean[],
  crossed_by integer[], crossed_names text[], thresholds_before smallint[], thresholds_after smallint[]
);

CREATE FUNCTION post_budgets(settled text[], settlers text[], cost_of integer[], cost_names text[], costs bigint[],
                             held text[], holders text[], ttls_us bigint[], dispatches boolean[],
                             line_of integer[], names text[], budget_names text[], stamps bigint[], amounts bigint[],
                             allowed bigint[], starts bigint[], ends bigint[], labels text[], at bigint DEFAULT NULL)
RETURNS post_answer LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  answer post_answer;
  window_ids bigint[];
BEGIN
  PERFORM 1 FROM holds WHERE id = ANY (settled || held) ORDER BY id FOR UPDATE;
  window_ids := ARRAY(
    SELECT window_id FROM hold_lines WHERE hold = ANY (settled)
    UNION
    SELECT known.id FROM unnest(names, starts, ends, labels) AS line (name, start, ends_at, label)
      JOIN budget_windows AS known ON (known.name, known.starts_at, known.ends_at, known.label)
                                    = (line.name, line.start, line.ends_at, line.label));
  PERFORM lock_windows(window_ids);
  answer.instant := coalesce(at, now_us());
  IF cardinality(settled) > 0 THEN
    answer := settle_holds(answer, settled, settlers, cost_of, cost_names, costs);
  END IF;
  IF cardinality(held) > 0 THEN
    answer.are_held := place_holds(answer.instant, window_ids, held, holders, ttls_us, dispatches, line_of, names,
                                   budget_names, stamps, amounts, allowed, starts, ends, labels);
  END IF;
  RETURN answer;
END $$;

-- The settlements of post_budgets. The thresholds of a window are reached one settlement after the other.
CREATE FUNCTION settle_holds(answer post_answer, settled text[], settlers text[], cost_of integer[], cost_names text[],
                             costs bigint[])
RETURNS post_answer LANGUAGE plpgsql AS $$
BEGIN
  SELECT array_agg(is_answered ORDER BY place) INTO answer.are_settled
    FROM (SELECT place, row_number() OVER (PARTITION BY hold ORDER BY place) = 1
                 AND EXISTS (SELECT 1 FROM holds JOIN hold_lines ON hold_lines.hold = id WHERE id = request.hold)
                 AND NOT EXISTS (
                   SELECT 1 FROM unnest(cost_of, cost_names) AS cost (place, name)
                    WHERE cost.place = request.place
                      AND NOT EXISTS (SELECT 1 FROM hold_lines JOIN budget_windows AS known ON known.id = window_id
                                       WHERE hold_lines.hold = request.hold AND cost.name IN (known.name, known.unit)))
                 AS is_answered
            FROM unnest(settled) WITH ORDINALITY AS request (hold, place)) AS requests;
  WITH closing AS (
         SELECT place, id, state FROM unnest(settled, settlers, answer.are_settled) WITH ORDINALITY
                                        AS request (hold, by_owner, is_answered, place)
           JOIN holds ON id = request.hold
          WHERE is_answered AND state <> 'settled' AND (by_owner IS NULL OR by_owner = owner)),
       priced AS (
         SELECT closing.place AS request, closing.id AS hold, closing.state, line.place, window_id, line.amount_micros,
                line.actual_micros,
                coalesce(
                  (SELECT cost FROM unnest(cost_of, cost_names, costs) AS given (place, name, cost)
                    WHERE given.place = closing.place AND given.name IN (known.name, known.unit)
                    ORDER BY given.name = known.name DESC LIMIT 1), line.amount_micros) AS cost,
                known.name, known.limit_micros, known.spent_micros, known.threshold_percent
           FROM closing JOIN hold_lines AS line ON line.hold = closing.id JOIN budget_windows AS known ON known.id = window_id),
       moves AS (
         SELECT *, cost - coalesce(actual_micros, 0) AS spent,
                CASE WHEN state IN ('held', 'dispatched') THEN -amount_micros ELSE 0 END AS freed
           FROM priced),
       reached AS (
         SELECT *, threshold_reached((spent_micros + sum(spent) OVER in_window)::bigint, limit_micros) AS threshold
           FROM moves WINDOW in_window AS (PARTITION BY window_id ORDER BY request, place)),
       told AS (
         SELECT *, greatest(threshold_percent, max(threshold) OVER in_window) AS threshold_after,
                greatest(threshold_percent, max(threshold) OVER (in_window ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
                AS threshold_before
           FROM reached WINDOW in_window AS (PARTITION BY window_id ORDER BY request, place)),
       closed AS (
         UPDATE holds SET state = 'settled', corrected_by = NULL FROM closing WHERE holds.id = closing.id),
       lines AS (
         UPDATE hold_lines SET actual_micros = told.cost FROM told
          WHERE hold_lines.hold = told.hold AND hold_lines.place = told.place),
       booked AS (
         UPDATE budget_windows AS known
            SET held_micros = known.held_micros + total.freed, spent_micros = known.spent_micros + total.spent,
                overdraft_micros = greatest(known.held_micros + total.freed + known.spent_micros + total.spent
                                            - known.limit_micros, 0),
                threshold_percent = total.threshold
           FROM (SELECT window_id, sum(freed)::bigint AS freed, sum(spent)::bigint AS spent,
                        max(threshold_after) AS threshold FROM told GROUP BY window_id) AS total
          WHERE known.id = total.window_id),
       written AS (
         INSERT INTO budget_journal (at, hold, window_id, kind, held_micros, spent_micros, crossed)
         SELECT answer.instant, hold, window_id, CASE WHEN state IN ('captured', 'void') THEN 'correct' ELSE 'settle' END,
                freed, spent, CASE WHEN threshold_after > threshold_before THEN threshold_after ELSE 0 END
           FROM told ORDER BY request, place)
  SELECT array_agg(request ORDER BY request, place), array_agg(name::text ORDER BY request, place),
         array_agg(threshold_before ORDER BY request, place), array_agg(threshold_after ORDER BY request, place)
    INTO answer.crossed_by, answer.crossed_names, answer.thresholds_before, answer.thresholds_after
    FROM told WHERE threshold_after > threshold_before;
  RETURN answer;
END $$;

-- The holds of post_budgets, one after the other: each counts for the next. Returns which of them are placed.
CREATE FUNCTION place_holds(instant bigint, window_ids bigint[], held text[], holders text[], ttls_us bigint[],
                            dispatches boolean[], line_of integer[], names text[], budget_names text[], stamps bigint[],
                            amounts bigint[], allowed bigint[], starts bigint[], ends bigint[], labels text[])
RETURNS boolean[] LANGUAGE plpgsql AS $$
DECLARE
  known_ids bigint[];
  used bigint[];
  limits bigint[];
  are_held boolean[] := array_fill(false, ARRAY[cardinality(held)]);
  candidate record;
  fits boolean;
  which integer;
  placed_of integer[] := '{}';
  placed_windows bigint[] := '{}';
  placed_amounts bigint[] := '{}';
BEGIN
  SELECT array_agg(id), array_agg(spent_micros + held_micros), array_agg(limit_micros) INTO known_ids, used, limits
    FROM budget_windows WHERE id = ANY (window_ids);
  FOR candidate IN
    SELECT wanted.place::integer AS place, array_agg(known.id ORDER BY line.place) AS windows,
           array_agg(line.amount ORDER BY line.place) AS amounts, array_agg(line.beyond ORDER BY line.place) AS beyond
      FROM (SELECT hold, place, row_number() OVER (PARTITION BY hold ORDER BY place) AS number
              FROM unnest(held) WITH ORDINALITY AS each (hold, place)) AS wanted
      JOIN unnest(line_of, names, budget_names, stamps, amounts, allowed, starts, ends, labels) WITH ORDINALITY
             AS line (request, name, budget, stamp, amount, beyond, start, ends_at, label, place)
           ON line.request = wanted.place
      LEFT JOIN budget_windows AS known
             ON (known.name, known.starts_at, known.ends_at, known.label)
              = (line.name, line.start, line.ends_at, line.label)
            AND known.id = ANY (window_ids) AND known.starts_at <= instant AND instant < known.ends_at
            AND line.stamp = (SELECT budgets.stamp FROM budgets WHERE budgets.name IN (line.name, line.budget)
                               ORDER BY budgets.name = line.name DESC LIMIT 1)
     WHERE wanted.number = 1 AND NOT EXISTS (SELECT 1 FROM holds WHERE holds.id = wanted.hold)
     GROUP BY wanted.place HAVING bool_and(known.id IS NOT NULL)
     ORDER BY wanted.place
  LOOP
    fits := true;
    FOR line IN 1 .. cardinality(candidate.windows) LOOP
      which := array_position(known_ids, candidate.windows[line]);
      fits := fits AND used[which] + candidate.amounts[line] <= limits[which] + candidate.beyond[line];
    END LOOP;
    CONTINUE WHEN NOT fits;
    are_held[candidate.place] := true;
    FOR line IN 1 .. cardinality(candidate.windows) LOOP
      which := array_position(known_ids, candidate.windows[line]);
      used[which] := used[which] + candidate.amounts[line];
    END LOOP;
    placed_of := placed_of || array_fill(candidate.place, ARRAY[cardinality(candidate.windows)]);
    placed_windows := placed_windows || candidate.windows;
    placed_amounts := placed_amounts || candidate.amounts;
  END LOOP;
  INSERT INTO holds (id, deadline, ttl_us, state, owner)
  SELECT hold, instant + ttl_us, ttl_us, CASE WHEN is_dispatched THEN 'dispatched' ELSE 'held' END, owner
    FROM unnest(held, holders, ttls_us, dispatches, are_held) AS each (hold, owner, ttl_us, is_dispatched, is_held)
   WHERE is_held;
  WITH lines AS (
         SELECT held[request] AS hold, row_number() OVER (PARTITION BY request ORDER BY number) AS place, window_id, amount,
                number
           FROM unnest(placed_of, placed_windows, placed_amounts) WITH ORDINALITY
                  AS line (request, window_id, amount, number)),
       kept AS (
         INSERT INTO hold_lines (hold, place, window_id, amount_micros)
         SELECT hold, place, window_id, amount FROM lines),
       booked AS (
         UPDATE budget_windows AS known
            SET held_micros = held_micros + total.amount,
                -- Each line fits within its overdraft, so the sum of all is within the highest.
                overdraft_micros = greatest(overdraft_micros, spent_micros + held_micros + total.amount - limit_micros)
           FROM (SELECT window_id, sum(amount)::bigint AS amount FROM lines GROUP BY window_id) AS total
          WHERE known.id = total.window_id)
  INSERT INTO budget_journal (at, hold, window_id, kind, held_micros, spent_micros)
  SELECT instant, hold, window_id, 'hold', amount, 0 FROM lines ORDER BY number;
  RETURN are_held;
END $$;
