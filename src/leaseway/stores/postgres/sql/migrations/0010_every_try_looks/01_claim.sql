-- As before, with lanes looked at once, where they were looked at for the floor, for gates and for turns; and changes of
-- lanes folded by chance. `is_full` of `outlook` is not asked any more, and goes with the next version, as do `claim`,
-- `open_lanes` and `any_gates`. There are schemas of version 9 whose `outlook` never had it, and some of these functions: so
-- fields are called by their names, and nothing is expected to be missing.

-- Lease the first jobs of these lanes. The attempt is counted here, so that a job that kills its worker cannot come back
-- for ever. The lanes move on by what they were to get.
CREATE OR REPLACE FUNCTION lease(worker text, wanted integer, new_token text, seen outlook, instant bigint) RETURNS SETOF exchanged
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
    UPDATE lanes
       SET served_at = instant, vfloor = greatest(vfloor, seen.first_place),
           vtime = greatest(vtime, seen.lowest)
                   + shares[array_position(seen.lanes, id)]::bigint * 1000000 / seen.weights[array_position(seen.lanes, id)]
     WHERE id = ANY (ARRAY(SELECT free.id FROM lanes AS free
                            WHERE free.id = ANY (seen.lanes) AND shares[array_position(seen.lanes, free.id)] > 0
                              FOR UPDATE SKIP LOCKED));
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
    WITH known AS MATERIALIZED (
           SELECT id, queue, tenant, needs, ready::bigint AS ready, weight, served_at, vtime, vfloor, is_gated
             FROM lane_counts WHERE queue = ANY (wanted_queues)),
         floor AS MATERIALIZED (
           SELECT coalesce(max(vfloor), 0) AS lowest, coalesce(bool_or(is_gated AND ready > 0), false) AS is_gated FROM known),
         turns AS (
           SELECT id, ready, weight, served_at, greatest(vtime, lowest) AS place
             FROM known CROSS JOIN floor
            WHERE ready > 0 AND NOT known.is_gated AND (only_tenant IS NULL OR tenant = only_tenant)
              AND (NOT EXISTS (SELECT 1 FROM pauses)
                   OR NOT EXISTS (SELECT 1 FROM pauses WHERE pauses.queue = known.queue AND pauses.tenant IN ('', known.tenant)))
            ORDER BY greatest(vtime, lowest), vtime, queue, tenant, needs LIMIT 100)
    -- While an old snapshot keeps dead rows alive, the first of these steps over every lease that ended since: a session
    -- for which that takes long looks less often (`any_expired`).
    SELECT coalesce(nullif(current_setting(rest, true), '')::bigint, 0) <= now_us()
             AND EXISTS (SELECT 1 FROM jobs WHERE stage = 2 AND until <= instant),
           EXISTS (SELECT 1 FROM jobs WHERE stage = 1 AND run_at <= instant),
           EXISTS (SELECT 1 FROM jobs WHERE stage = 2 AND cancel_requested AND owner = worker),
           (SELECT is_gated FROM floor),
           array_agg(id), array_agg(ready), array_agg(ready), array_agg(weight),
           (SELECT lowest FROM floor), min(place), max(served_at)
      INTO seen.is_late, seen.is_due, seen.is_cancelling, seen.is_gated, seen.lanes, seen.ready, seen.usable, seen.weights,
           seen.lowest, seen.first_place, seen.last_served
      FROM turns;
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
  -- To count the changes of lanes each time would cost as much as they do. Where many lanes change, they are many soon.
  IF random() < 0.04 OR cardinality(seen.lanes) > 10 THEN
    PERFORM fold(25);
  END IF;
END $$;
