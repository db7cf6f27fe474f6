-- What becomes of holds. Whoever changes one locks its row first, then the windows of its lines in the order of their
-- ids, and changes them in a statement of its own: only that one starts from the rows as they were locked. (A CHECK
-- is judged on the row that the statement saw, before PostgreSQL notices that there is a newer one.)

CREATE FUNCTION lock_windows(ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM budget_windows WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
END $$;

CREATE FUNCTION windows_of(hold_ids text[]) RETURNS bigint[] LANGUAGE sql STABLE AS $$
  SELECT coalesce(array_agg(DISTINCT window_id), '{}') FROM hold_lines WHERE hold = ANY (hold_ids)
$$;

-- Free what is held, and replace what was spent; all is locked. A settlement says what it cost, by the name of a budget
-- or by unit; what is not named costs what was held for it.
CREATE FUNCTION close_hold(called text, state_before text, state_after text, as_kind text, instant bigint,
                           whats text[] DEFAULT '{}', amounts bigint[] DEFAULT '{}')
RETURNS TABLE (name text, told_before smallint, told_after smallint) LANGUAGE plpgsql AS $$
BEGIN
  UPDATE holds SET state = state_after WHERE id = called;
  RETURN QUERY
  WITH costs AS (
         SELECT place, window_id, amount_micros, actual_micros, budget_windows.told,
                CASE WHEN state_after <> 'void' THEN
                  coalesce(amounts[array_position(whats, budget_windows.name::text)],
                           amounts[array_position(whats, unit)], amount_micros) END AS cost
           FROM hold_lines JOIN budget_windows ON budget_windows.id = window_id
          WHERE hold = called),
       moves AS (
         SELECT place, window_id, cost, told, coalesce(cost, 0) - coalesce(actual_micros, 0) AS spent,
                CASE WHEN state_before IN ('held', 'dispatched') THEN -amount_micros ELSE 0 END AS held
           FROM costs),
       lines AS (
         UPDATE hold_lines SET actual_micros = moves.cost FROM moves
          WHERE hold_lines.hold = called AND hold_lines.place = moves.place),
       booked AS (
         UPDATE budget_windows AS known
            SET held_micros = known.held_micros + moves.held, spent_micros = known.spent_micros + moves.spent,
                overdraft_micros = greatest(known.held_micros + moves.held + known.spent_micros + moves.spent
                                            - known.limit_micros, 0),
                told = greatest(known.told, threshold_reached(known.spent_micros + moves.spent, known.limit_micros))
           FROM moves WHERE known.id = moves.window_id
         RETURNING known.id, known.name, moves.told AS told_before, known.told AS told_after, moves.place),
       written AS (
         INSERT INTO budget_journal (at, hold, window_id, kind, held_micros, spent_micros, crossed)
         SELECT instant, called, moves.window_id, as_kind, moves.held, moves.spent,
                CASE WHEN booked.told_after > booked.told_before THEN booked.told_after ELSE 0 END
           FROM moves JOIN booked ON booked.id = moves.window_id ORDER BY moves.place)
  SELECT booked.name, booked.told_before, booked.told_after FROM booked ORDER BY booked.place;
END $$;

-- What a call cost is a fact, whatever has become of its hold; only a second settlement is not.
CREATE FUNCTION settle_hold(called text, whats text[], amounts bigint[], at bigint DEFAULT NULL)
RETURNS TABLE (name text, told_before smallint, told_after smallint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  found_state text;
  known text[];
  wrong text;
BEGIN
  SELECT state INTO found_state FROM holds WHERE id = called FOR UPDATE;
  PERFORM lock_windows(windows_of(ARRAY[called]));
  SELECT array_agg(DISTINCT word ORDER BY word) INTO known
    FROM hold_lines JOIN budget_windows ON id = window_id CROSS JOIN LATERAL (VALUES (budget_windows.name), (unit)) AS each (word)
   WHERE hold = called;
  IF known IS NULL THEN
    RAISE EXCEPTION 'hold: nothing is known under %; it was never held, or it was forgotten long ago', quote_literal(called)
      USING ERRCODE = 'LW002';
  END IF;
  SELECT what INTO wrong FROM unnest(whats) AS each (what) WHERE what <> ALL (known) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'settle %: was not held; there are %', wrong, array_to_string(known, ', ') USING ERRCODE = 'LW002';
  END IF;
  IF found_state = 'settled' THEN
    RETURN;
  END IF;
  RETURN QUERY SELECT * FROM close_hold(called, found_state, 'settled',
    CASE WHEN found_state IN ('captured', 'void') THEN 'correct' ELSE 'settle' END, coalesce(at, now_us()), whats, amounts);
END $$;

CREATE FUNCTION void_hold(called text, at bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE found_state text;
BEGIN
  SELECT state INTO found_state FROM holds WHERE id = called FOR UPDATE;
  IF found_state = 'held' THEN
    PERFORM lock_windows(windows_of(ARRAY[called]));
    PERFORM close_hold(called, 'held', 'void', 'void', coalesce(at, now_us()));
  END IF;
  RETURN coalesce(found_state IN ('held', 'void'), false);
END $$;

-- The fence before a call.
CREATE FUNCTION dispatch_hold(called text, at bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  known holds;
  instant bigint;
BEGIN
  SELECT * INTO known FROM holds WHERE id = called FOR UPDATE;
  instant := coalesce(at, now_us());
  IF NOT FOUND OR known.state NOT IN ('held', 'dispatched') OR instant >= known.deadline THEN
    RETURN false;
  END IF;
  IF known.state = 'held' THEN
    IF EXISTS (SELECT 1 FROM hold_lines JOIN budget_windows ON id = window_id
                WHERE hold = called AND NOT (starts_at <= instant AND instant < ends_at)) THEN
      RETURN false;
    END IF;
    UPDATE holds SET state = 'dispatched', deadline = instant + ttl_us WHERE id = called;
  END IF;
  RETURN true;
END $$;

-- Holds past their deadline: what was only held cannot be dispatched any more, and what was may have been called.
CREATE FUNCTION expire_holds(most integer, at bigint DEFAULT NULL)
RETURNS TABLE (hold text, was_dispatched boolean, name text, told_before smallint, told_after smallint)
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
  PERFORM lock_windows(windows_of(late));
  FOR each IN SELECT * FROM holds WHERE id = ANY (late) ORDER BY deadline, id LOOP
    RETURN QUERY
    SELECT each.id, each.state = 'dispatched', closed.name, closed.told_before, closed.told_after
      FROM close_hold(each.id, each.state, CASE each.state WHEN 'dispatched' THEN 'captured' ELSE 'void' END,
                      CASE each.state WHEN 'dispatched' THEN 'capture' ELSE 'expire' END, instant) AS closed;
  END LOOP;
END $$;
