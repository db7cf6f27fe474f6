-- What a budget is, said by code and by people.

-- One word about one budget; its version. The code's word counts if it is new or differs from what the code said last.
CREATE FUNCTION keep_budget(said json, is_code boolean, at bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  called text := said ->> 'name';
  word jsonb := said;
  new_limit bigint := said ->> 'limit_micros';
  known budgets;
BEGIN
  INSERT INTO budgets (name, unit, limit_micros, overdraft_micros, definition, declared)
  VALUES (called, said ->> 'unit', new_limit, (said ->> 'overdraft_micros')::bigint, word, CASE WHEN is_code THEN word END)
  ON CONFLICT (name) DO NOTHING;
  IF NOT FOUND THEN
    SELECT * INTO known FROM budgets WHERE name = called FOR UPDATE;
    IF known.unit <> said ->> 'unit' THEN
      RAISE EXCEPTION 'budget %: counts %, not %; give the new budget another name, or forget the old one first',
                      called, known.unit, said ->> 'unit' USING ERRCODE = 'LW002';
    END IF;
    IF is_code AND known.declared IS NOT DISTINCT FROM word THEN
      RETURN known.version;
    END IF;
    UPDATE budgets
       SET limit_micros = new_limit, overdraft_micros = (said ->> 'overdraft_micros')::bigint, definition = word,
           declared = CASE WHEN is_code THEN word ELSE declared END, stamp = nextval('budget_stamps'),
           version = version + (definition <> word)::integer
     WHERE name = called;
  END IF;
  -- The windows are locked before they are changed: then the change starts from what is there.
  PERFORM 1 FROM budget_windows WHERE (budget = called OR name = called) AND ends_at > coalesce(at, now_us())
    ORDER BY id FOR UPDATE;
  UPDATE budget_windows
     SET budget = called, limit_micros = new_limit,
         overdraft_micros = greatest(spent_micros + held_micros - new_limit, 0),
         told = least(told, threshold_reached(spent_micros, new_limit))
   WHERE (budget = called OR name = called) AND ends_at > coalesce(at, now_us());
  RETURN (SELECT version FROM budgets WHERE name = called);
END $$;

CREATE FUNCTION declare_budgets(said json, at bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM keep_budget(each, true, at)
     FROM (SELECT each FROM json_array_elements(said) AS word (each) ORDER BY (each ->> 'name') COLLATE "C") AS in_order;
END $$;

CREATE FUNCTION change_budget(said json, at bigint DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  RETURN keep_budget(said, false, at);
END $$;

-- Windows with all that is known of them. They are locked, and nothing is held in them.
CREATE FUNCTION drop_windows(ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE touched text[];
BEGIN
  WITH gone AS (DELETE FROM hold_lines WHERE window_id = ANY (ids) RETURNING hold)
  SELECT array_agg(DISTINCT hold) INTO touched FROM gone;
  DELETE FROM budget_journal WHERE window_id = ANY (ids);
  DELETE FROM budget_windows WHERE id = ANY (ids);
  DELETE FROM holds WHERE id = ANY (touched) AND NOT EXISTS (SELECT 1 FROM hold_lines WHERE hold = holds.id);
END $$;

CREATE FUNCTION forget_budget(called text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE ids bigint[];
BEGIN
  PERFORM 1 FROM budgets WHERE name = called FOR UPDATE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  ids := ARRAY(SELECT id FROM budget_windows WHERE budget = called ORDER BY id FOR UPDATE);
  IF EXISTS (SELECT 1 FROM budget_windows WHERE id = ANY (ids) AND held_micros > 0) THEN
    RAISE EXCEPTION 'budget %: something is held in it; wait until its calls are settled', called USING ERRCODE = 'LW002';
  END IF;
  DELETE FROM budgets WHERE name = called;
  PERFORM drop_windows(ids);
  RETURN true;
END $$;

-- Forget windows that ended longer ago than this and in which nothing is open, at most so many.
CREATE FUNCTION prune_budgets(keep_us bigint, most integer, at bigint DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE ids bigint[];
BEGIN
  ids := ARRAY(SELECT id FROM budget_windows WHERE ends_at <= coalesce(at, now_us()) - keep_us AND held_micros = 0
                ORDER BY ends_at, name LIMIT greatest(most, 0) FOR UPDATE SKIP LOCKED);
  PERFORM drop_windows(ids);
  RETURN cardinality(ids);
END $$;
