-- As before, but a new release of the code does not resume what was paused. Whether a budget is paused, clients read in
-- its definition; the stamp tells them when to read it anew.
CREATE OR REPLACE FUNCTION keep_budget(said json, is_code boolean, at bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  called text := said ->> 'name';
  word jsonb := said;
  new_limit bigint := said ->> 'limit_micros';
  known budgets;
  in_force jsonb;
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
    in_force := word || CASE WHEN is_code AND known.definition ? 'paused' THEN '{"paused": true}' ELSE '{}' END::jsonb;
    UPDATE budgets
       SET limit_micros = new_limit, overdraft_micros = (said ->> 'overdraft_micros')::bigint, definition = in_force,
           declared = CASE WHEN is_code THEN word ELSE declared END, stamp = nextval('budget_stamps'),
           version = version + (definition <> in_force)::integer
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

-- What people say, if nobody has said something else since they looked; 0: if there is none yet.
CREATE FUNCTION change_budget_from(said json, expected integer, at bigint DEFAULT NULL) RETURNS integer LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  present integer;
  new_version integer;
BEGIN
  SELECT version INTO present FROM budgets WHERE name = said ->> 'name' FOR UPDATE;
  PERFORM refuse_stale('budget ' || (said ->> 'name'), coalesce(present, 0), expected);
  new_version := change_budget(said, at);
  -- Whoever defines it in the same moment was not there to be locked. What is said again changes nothing.
  IF new_version <> expected THEN
    PERFORM refuse_stale('budget ' || (said ->> 'name'), new_version - 1, expected);
  END IF;
  RETURN new_version;
END $$;
