-- Budgets: definitions, windows and the tables of holds. leaseway.domain.budgets.ledger defines what every column
-- means. Amounts are millionths of a unit.

CREATE SEQUENCE budget_stamps;

-- A failover can set the sequence back, but never to a stamp of the same timeline.
CREATE FUNCTION next_stamp() RETURNS bigint LANGUAGE sql VOLATILE RETURN fence_floor() + nextval('budget_stamps');

-- `stamp` changes with every definition, so that the server recognizes clients that work with an old one. `declared` is
-- what the code declared last; NULL if only operators have defined the budget.
CREATE TABLE budgets (
  name text COLLATE "C" PRIMARY KEY,
  unit text NOT NULL,
  limit_micros bigint NOT NULL,
  overdraft_micros bigint NOT NULL,
  definition jsonb NOT NULL,
  declared jsonb,
  version integer NOT NULL DEFAULT 1,
  stamp bigint NOT NULL DEFAULT next_stamp()
);

-- What was spent and is held in one window of one budget. `threshold_percent` is the highest threshold that was
-- reported.
CREATE TABLE budget_windows (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  starts_at bigint NOT NULL,
  ends_at bigint NOT NULL,
  limit_micros bigint NOT NULL,
  spent_micros bigint NOT NULL DEFAULT 0 CHECK (spent_micros >= 0),
  held_micros bigint NOT NULL DEFAULT 0 CHECK (held_micros >= 0),
  overdraft_micros bigint NOT NULL DEFAULT 0 CHECK (overdraft_micros >= 0),
  threshold_percent smallint NOT NULL DEFAULT 0,
  name text COLLATE "C" NOT NULL,
  budget text COLLATE "C" NOT NULL,
  unit text NOT NULL,
  label text COLLATE "C" NOT NULL,
  UNIQUE (name, starts_at, ends_at, label),
  CHECK (spent_micros + held_micros <= limit_micros + overdraft_micros)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE INDEX budget_windows_by_budget ON budget_windows (budget);

CREATE INDEX budget_windows_ending ON budget_windows (ends_at);

CREATE TABLE holds (
  id text COLLATE "C" PRIMARY KEY,
  deadline bigint NOT NULL,
  ttl_us bigint NOT NULL,
  state text NOT NULL CHECK (state IN ('held', 'dispatched', 'settled', 'captured', 'void')),
  owner text NOT NULL,
  corrected_by text
);

CREATE INDEX holds_open ON holds (deadline, id) WHERE state IN ('held', 'dispatched');

CREATE INDEX holds_reserved ON holds (id) WHERE state = 'held';

CREATE INDEX holds_captured ON holds (deadline, id) WHERE state = 'captured';

-- A hold reserves an amount in one window of each of its budgets.
CREATE TABLE hold_lines (
  hold text COLLATE "C" NOT NULL,
  place integer NOT NULL,
  window_id bigint NOT NULL,
  amount_micros bigint NOT NULL,
  actual_micros bigint,
  PRIMARY KEY (hold, place)
);

CREATE INDEX hold_lines_by_window ON hold_lines (window_id);

-- Append-only. `corrected_by`, `reason` and `from_micros` are set by corrections of operators.
CREATE TABLE budget_journal (
  seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at bigint NOT NULL,
  window_id bigint NOT NULL,
  held_micros bigint NOT NULL,
  spent_micros bigint NOT NULL,
  crossed smallint NOT NULL DEFAULT 0,
  from_micros bigint,
  kind text NOT NULL,
  hold text COLLATE "C" NOT NULL,
  corrected_by text,
  reason text
);

CREATE INDEX budget_journal_by_window ON budget_journal (window_id, seq);

-- The highest threshold, in percent, that this spending has reached.
CREATE FUNCTION threshold_reached(spent bigint, limit_micros bigint) RETURNS smallint LANGUAGE sql IMMUTABLE RETURN
  CASE WHEN spent >= limit_micros THEN 100
       WHEN spent >= (limit_micros * 80 + 99) / 100 THEN 80
       WHEN spent >= (limit_micros * 50 + 99) / 100 THEN 50
       ELSE 0 END;

-- Store a definition and apply it to the open windows. A declaration of the code does not resume a paused budget.
-- Clients read in the definition whether a budget is paused; a new stamp tells them to read it again.
CREATE FUNCTION store_budget(new_definition json, is_code boolean, at bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  budget_name text := new_definition ->> 'name';
  as_jsonb jsonb := new_definition;
  new_limit bigint := new_definition ->> 'limit_micros';
  known budgets;
  in_force jsonb;
BEGIN
  INSERT INTO budgets (name, unit, limit_micros, overdraft_micros, definition, declared)
  VALUES (budget_name, new_definition ->> 'unit', new_limit, (new_definition ->> 'overdraft_micros')::bigint, as_jsonb,
          CASE WHEN is_code THEN as_jsonb END)
  ON CONFLICT (name) DO NOTHING;
  IF NOT FOUND THEN
    SELECT * INTO known FROM budgets WHERE name = budget_name FOR UPDATE;
    IF known.unit <> new_definition ->> 'unit' THEN
      RAISE EXCEPTION 'budget %: counts %, not %; give the new budget another name, or forget the old one first',
                      budget_name, known.unit, new_definition ->> 'unit' USING ERRCODE = 'LW002';
    END IF;
    IF is_code AND known.declared IS NOT DISTINCT FROM as_jsonb THEN
      RETURN known.version;
    END IF;
    in_force := as_jsonb || CASE WHEN is_code AND known.definition ? 'paused' THEN '{"paused": true}' ELSE '{}' END::jsonb;
    UPDATE budgets
       SET limit_micros = new_limit, overdraft_micros = (new_definition ->> 'overdraft_micros')::bigint,
           definition = in_force,
           declared = CASE WHEN is_code THEN as_jsonb ELSE declared END, stamp = next_stamp(),
           version = version + (definition <> in_force)::integer
     WHERE name = budget_name;
  END IF;
  -- Lock the windows first, so that the update starts from their newest versions.
  PERFORM 1 FROM budget_windows WHERE (budget = budget_name OR name = budget_name) AND ends_at > coalesce(at, now_us())
    ORDER BY id FOR UPDATE;
  UPDATE budget_windows
     SET budget = budget_name, limit_micros = new_limit,
         overdraft_micros = greatest(spent_micros + held_micros - new_limit, 0),
         threshold_percent = least(threshold_percent, threshold_reached(spent_micros, new_limit))
   WHERE (budget = budget_name OR name = budget_name) AND ends_at > coalesce(at, now_us());
  RETURN (SELECT version FROM budgets WHERE name = budget_name);
END $$;

CREATE FUNCTION declare_budgets(definitions json, at bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM store_budget(each, true, at)
     FROM (SELECT each FROM json_array_elements(definitions) AS sent (each)
            ORDER BY (each ->> 'name') COLLATE "C") AS in_order;
END $$;

-- Store the definition of an operator. With `expected`, the change is refused unless the budget is at this version; 0
-- means that it must not exist.
CREATE FUNCTION change_budget(new_definition json, expected integer DEFAULT NULL, at bigint DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  label text := 'budget ' || (new_definition ->> 'name');
  present integer;
  new_version integer;
BEGIN
  IF expected IS NOT NULL THEN
    SELECT version INTO present FROM budgets WHERE name = new_definition ->> 'name' FOR UPDATE;
    PERFORM refuse_stale(label, coalesce(present, 0), expected);
  END IF;
  new_version := store_budget(new_definition, false, at);
  -- A budget that another transaction created at the same time could not be locked above. A repeated definition keeps
  -- its version.
  IF new_version <> expected THEN
    PERFORM refuse_stale(label, new_version - 1, expected);
  END IF;
  RETURN new_version;
END $$;

-- Delete windows and everything that refers to them. The caller has locked them, and nothing is held in them.
CREATE FUNCTION delete_windows(ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE touched text[];
BEGIN
  WITH gone AS (DELETE FROM hold_lines WHERE window_id = ANY (ids) RETURNING hold)
  SELECT array_agg(DISTINCT hold) INTO touched FROM gone;
  DELETE FROM budget_journal WHERE window_id = ANY (ids);
  DELETE FROM budget_windows WHERE id = ANY (ids);
  DELETE FROM holds WHERE id = ANY (touched) AND NOT EXISTS (SELECT 1 FROM hold_lines WHERE hold = holds.id);
END $$;

-- Delete a budget with its windows. Holds under which no call was made are released; dispatched ones are an error. As in
-- every function, holds are locked before windows, and before the definition, which a hold locks when it opens a window.
CREATE FUNCTION forget_budget(budget_name text, at bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  ids bigint[];
  released text[];
BEGIN
  released := ARRAY(
    SELECT id FROM holds
     WHERE state = 'held' AND EXISTS (SELECT 1 FROM hold_lines JOIN budget_windows AS known ON known.id = window_id
                                       WHERE hold = holds.id AND budget = budget_name)
     ORDER BY id FOR UPDATE);
  PERFORM 1 FROM budgets WHERE name = budget_name FOR UPDATE;
  IF NOT FOUND THEN
    RETURN await_replication();
  END IF;
  ids := ARRAY(SELECT id FROM budget_windows WHERE budget = budget_name);
  PERFORM lock_windows(ids || hold_windows(released));
  PERFORM close_hold(id, 'held', 'void', 'void', coalesce(at, now_us())) FROM unnest(released) AS each (id);
  -- What is held now belongs to calls under way, or to holds that were placed a moment ago.
  IF EXISTS (SELECT 1 FROM budget_windows WHERE id = ANY (ids) AND held_micros > 0) THEN
    RAISE EXCEPTION 'budget %: has calls under way; wait until they are settled', budget_name
      USING ERRCODE = 'LW002';
  END IF;
  DELETE FROM budgets WHERE name = budget_name;
  PERFORM delete_windows(ids);
  RETURN true;
END $$;

-- Delete windows that ended longer ago than `keep_us` and in which nothing is held.
CREATE FUNCTION prune_budgets(keep_us bigint, most integer, at bigint DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE ids bigint[];
BEGIN
  ids := ARRAY(SELECT id FROM budget_windows WHERE ends_at <= coalesce(at, now_us()) - keep_us AND held_micros = 0
                ORDER BY ends_at, name LIMIT greatest(most, 0) FOR UPDATE SKIP LOCKED);
  PERFORM delete_windows(ids);
  RETURN cardinality(ids);
END $$;
