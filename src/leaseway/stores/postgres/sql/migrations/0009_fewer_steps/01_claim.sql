-- From rest a step inside a function costs ten times what it costs in a loop: nothing of it is near the processor any
-- more. So one look says all that an exchange has to know, where there were ten; what is seldom due has a step of its
-- own, taken only if the look says so; and changes of lanes are folded four times as early, since every look adds them up.
-- `claim`, `open_lanes`, `floor_of` and `any_gates` are not called any more; they go with the next version.

-- What an exchange has to know, once it has settled.
CREATE TYPE outlook AS (
  is_late boolean,       -- a lease ran out
  is_due boolean,        -- a scheduled job's time has come
  is_cancelling boolean, -- a job of this worker shall stop
  is_gated boolean,      -- there are gates
  is_full boolean,       -- there are enough changes of lanes to fold them
  lanes integer[], ready bigint[], usable bigint[], weights integer[], -- to claim from, the one furthest behind first
  lowest bigint, first_place bigint, last_served bigint);

-- The same with the lanes whose gates are admitted.
CREATE FUNCTION through_gates(seen outlook, wanted_queues text[], lanes_max integer, admits json) RETURNS outlook
LANGUAGE plpgsql STABLE AS $$
BEGIN
  SELECT array_agg(turn.id), array_agg(turn.ready), array_agg(turn.usable), array_agg(turn.weight), min(turn.place),
         max(turn.served_at)
    INTO seen.lanes, seen.ready, seen.usable, seen.weights, seen.first_place, seen.last_served
    FROM turns(wanted_queues, lanes_max, admits, seen.lowest) AS turn;
  RETURN seen;
END $$;

-- The first jobs of several lanes, or of a long one.
CREATE FUNCTION pick_each(seen outlook, shares integer[], instant bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE picked text[] := '{}';
BEGIN
  FOR n IN 1 .. cardinality(seen.lanes) LOOP
    IF seen.ready[n] < 10000 THEN
      picked := picked || pick(seen.lanes[n], shares[n]);
    ELSE
      picked := picked || pick_far(seen.lanes[n], shares[n], instant);
    END IF;
  END LOOP;
  RETURN picked;
END $$;

-- Lease the first jobs of these lanes. The attempt is counted here, so that a job that kills its worker cannot come back
-- for ever. The lanes move on by what they were to get.
CREATE FUNCTION lease(worker text, wanted integer, new_token text, seen outlook, instant bigint) RETURNS SETOF exchanged
LANGUAGE plpgsql AS $$
DECLARE
  is_alone boolean := cardinality(seen.lanes) = 1;
  shares integer[] := CASE WHEN is_alone THEN ARRAY[least(wanted, seen.usable[1])]
                           ELSE share(wanted, seen.usable, seen.weights) END;
  picked text[];
BEGIN
  -- One long lane alone needs no turns, and no row of it for every claim.
  IF NOT is_alone OR seen.ready[1] < 10000 OR seen.last_served < instant - 1000000 THEN
    -- A hint for the next one: whoever serves the lane at the same moment is not waited for.
    UPDATE lanes AS each
       SET served_at = instant, vfloor = greatest(each.vfloor, seen.first_place),
           vtime = greatest(each.vtime, seen.lowest) + served.portion::bigint * 1000000 / served.weight
      FROM (SELECT each.id, portion, weight
              FROM unnest(seen.lanes, shares, seen.weights) AS served (id, portion, weight) JOIN lanes AS each USING (id)
             WHERE portion > 0 FOR UPDATE OF each SKIP LOCKED) AS served
     WHERE each.id = served.id;
  END IF;
  IF is_alone AND seen.ready[1] < 10000 THEN -- as `pick` does, without the step
    picked := ARRAY(SELECT jobs.id FROM jobs WHERE jobs.lane = seen.lanes[1] AND stage = 0
                     ORDER BY jobs.priority DESC, run_at, seq LIMIT shares[1] FOR UPDATE SKIP LOCKED);
  ELSE
    picked := pick_each(seen, shares, instant);
  END IF;
  IF picked = '{}' THEN
    RETURN;
  END IF;
  RETURN QUERY
  WITH leased AS (
         UPDATE jobs SET stage = 2, attempts = jobs.attempts + 1, fence = jobs.fence + 1, token = new_token,
                owner = worker, until = instant + payloads.lease_us
           FROM unnest(picked) WITH ORDINALITY AS picked (id, place) JOIN payloads ON payloads.id = picked.id
          WHERE jobs.id = picked.id
         RETURNING place, jobs.lane, jobs.id, jobs.fence, payloads.kind, payloads.payload, jobs.attempts,
                   payloads.attempts_max, payloads.lease_us, payloads.timeout_us, payloads.shard_key, jobs.cursor,
                   jobs.priority),
       counted AS (
         INSERT INTO lane_changes (lane, ready, leased)
         SELECT leased.lane, -count(*), count(*) FROM leased GROUP BY leased.lane)
  SELECT 0::smallint, leased.id, leased.fence, leased.kind, lanes.queue, lanes.tenant, leased.payload, leased.attempts,
         leased.attempts_max, leased.lease_us, leased.timeout_us, leased.shard_key, leased.cursor, leased.priority, lanes.needs
    FROM leased JOIN lanes ON lanes.id = leased.lane
   ORDER BY place;
END $$;

-- The worker's one hot verb: settle, take back, promote, claim, in one transaction and one round trip.
-- Plans do not depend on statistics: of a table that empties and fills within a second they are always wrong.
CREATE OR REPLACE FUNCTION exchange(
  worker text, wanted_queues text[], wanted integer, new_token text, is_repeat boolean,
  done_ids text[], done_tokens text[], done_results text[], others json,
  parents text[], parent_tokens text[], child_ids text[], child_payloads text[], child_spec_of integer[],
  child_specs json, child_keys text[], child_fingerprints text[], at bigint DEFAULT NULL, admits json DEFAULT NULL,
  closed json DEFAULT NULL)
RETURNS SETOF exchanged LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
  instant bigint := coalesce(at, now_us());
  only_tenant text := nullif(current_setting('leaseway.wanted_tenant', true), '');
  rest text := format('leaseway.rest_%s', current_schema());
  began timestamptz;
  seen outlook;
BEGIN
  IF done_ids IS NOT NULL OR others IS NOT NULL THEN
    RETURN QUERY SELECT 1::smallint, lost, NULL::integer, NULL, NULL, NULL, NULL, NULL::integer, NULL::integer,
                        NULL::bigint, NULL::bigint, NULL, NULL, NULL::smallint, NULL
                   FROM hand_back(done_ids, done_tokens, done_results, others, parents, parent_tokens, child_ids,
                                  child_payloads, child_spec_of, child_specs, child_keys, child_fingerprints, instant)
                        AS lost;
  END IF;

  FOR look IN 1 .. 2 LOOP
    began := clock_timestamp();
    WITH floor AS MATERIALIZED (
           SELECT coalesce(max(vfloor), 0) AS lowest FROM lanes WHERE queue = ANY (wanted_queues)),
         turns AS (
           SELECT id, ready::bigint AS ready, weight, served_at, greatest(vtime, lowest) AS place
             FROM lane_counts CROSS JOIN floor
            WHERE queue = ANY (wanted_queues) AND ready > 0 AND NOT is_gated
              AND (only_tenant IS NULL OR tenant = only_tenant)
              AND (NOT EXISTS (SELECT 1 FROM pauses) OR NOT is_paused)
            ORDER BY greatest(vtime, lowest), vtime, queue, tenant, needs LIMIT 100)
    -- While an old snapshot keeps dead rows alive, the first of these steps over every lease that ended since: a session
    -- for which that takes long looks less often (`any_expired`).
    SELECT coalesce(nullif(current_setting(rest, true), '')::bigint, 0) <= now_us()
             AND EXISTS (SELECT 1 FROM jobs WHERE stage = 2 AND until <= instant),
           EXISTS (SELECT 1 FROM jobs WHERE stage = 1 AND run_at <= instant),
           EXISTS (SELECT 1 FROM jobs WHERE stage = 2 AND cancel_requested AND owner = worker),
           EXISTS (SELECT 1 FROM lanes WHERE queue = ANY (wanted_queues) AND needs <> '')
             OR EXISTS (SELECT 1 FROM tenants WHERE is_capped),
           EXISTS (SELECT 1 FROM lane_changes OFFSET 49),
           array_agg(id), array_agg(ready), array_agg(ready), array_agg(weight),
           (SELECT lowest FROM floor), min(place), max(served_at)
      INTO seen FROM turns;
    IF NOT seen.is_late AND clock_timestamp() - began > interval '20 milliseconds' THEN
      PERFORM any_expired(instant); -- which finds out whether it was this, and not the first plan or a busy machine
    END IF;
    EXIT WHEN look = 2 OR NOT (seen.is_late OR seen.is_due);
    -- What is taken back or promoted now can be claimed at once: so look again.
    PERFORM reclaim(1000, instant);
    PERFORM promote(1000, instant);
  END LOOP;

  IF is_repeat THEN
    RETURN QUERY SELECT * FROM adopt(worker, new_token, instant);
  END IF;
  IF wanted > 0 AND NOT (is_repeat AND FOUND) THEN
    IF admits IS NOT NULL THEN
      seen := through_gates(seen, wanted_queues, 100, admits);
    END IF;
    IF seen.lanes IS NOT NULL THEN
      RETURN QUERY SELECT * FROM lease(worker, wanted, new_token, seen, instant);
    END IF;
  END IF;
  IF wanted > 0 AND seen.is_gated THEN
    RETURN QUERY SELECT * FROM gated(wanted_queues, 100, closed);
  END IF;
  IF seen.is_cancelling THEN
    RETURN QUERY SELECT 2::smallint, id, NULL::integer, NULL, NULL, NULL, NULL, NULL::integer, NULL::integer,
                        NULL::bigint, NULL::bigint, NULL, NULL, NULL::smallint, NULL
                   FROM jobs WHERE stage = 2 AND cancel_requested AND owner = worker ORDER BY seq;
  END IF;
  IF seen.is_full THEN
    PERFORM fold(50);
  END IF;
END $$;
