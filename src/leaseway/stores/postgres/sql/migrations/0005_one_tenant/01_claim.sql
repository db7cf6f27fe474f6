-- A worker may work for one tenant alone. For whom, is said for the length of one exchange, and not as one more parameter
-- of every step: workers of the version before go on as they are.
CREATE FUNCTION wanted_tenant() RETURNS text LANGUAGE sql STABLE AS $$
  SELECT nullif(current_setting('leaseway.wanted_tenant', true), '')
$$;

-- As before, but with a look at whose lanes are wanted.
CREATE OR REPLACE FUNCTION turns(wanted_queues text[], lanes_max integer, admits json, lowest bigint)
RETURNS TABLE (id integer, ready bigint, usable bigint, weight integer, served_at bigint, place bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE only_tenant text := wanted_tenant();
BEGIN
  RETURN QUERY
  WITH admitted AS (
         SELECT needs, tenant, sum(count) AS most
           FROM json_to_recordset(admits) AS sent (needs text, tenant text, count integer) GROUP BY needs, tenant),
       waiting AS (
         SELECT lane_counts.*, most, greatest(vtime, lowest) AS place
           FROM lane_counts LEFT JOIN admitted USING (needs, tenant)
          WHERE queue = ANY (wanted_queues) AND ready > 0 AND (NOT is_gated OR most > 0)
            AND (only_tenant IS NULL OR tenant = only_tenant)
          ORDER BY greatest(vtime, lowest), vtime, queue, tenant, needs LIMIT lanes_max),
       behind AS (
         SELECT *, sum(ready) OVER (PARTITION BY needs, tenant ORDER BY place, vtime, queue) - ready AS before FROM waiting)
  SELECT id, ready::bigint, CASE WHEN is_gated THEN greatest(least(ready, most - before), 0) ELSE ready END::bigint,
         weight, served_at, place
    FROM behind ORDER BY place, vtime, queue, tenant, needs;
END $$;

CREATE OR REPLACE FUNCTION open_lanes(wanted_queues text[], wanted integer, lanes_max integer, admits json, instant bigint,
                           OUT lanes integer[], OUT ready bigint[], OUT shares integer[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  lowest bigint := floor_of(wanted_queues);
  only_tenant text := wanted_tenant();
  usable bigint[];
  weights integer[];
  first_place bigint;
  last_served bigint;
BEGIN
  IF admits IS NULL THEN -- the shorter way, for those who know no gates
    SELECT array_agg(id), array_agg(turn.ready), array_agg(turn.ready), array_agg(weight), min(place), max(served_at)
      INTO lanes, ready, usable, weights, first_place, last_served
      FROM (SELECT id, ready::bigint, weight, served_at, greatest(vtime, lowest) AS place
              FROM lane_counts WHERE queue = ANY (wanted_queues) AND ready > 0 AND NOT is_gated
               AND (only_tenant IS NULL OR tenant = only_tenant)
             ORDER BY greatest(vtime, lowest), vtime, queue, tenant, needs LIMIT lanes_max) AS turn;
  ELSE
    SELECT array_agg(id), array_agg(turn.ready), array_agg(turn.usable), array_agg(weight), min(place), max(served_at)
      INTO lanes, ready, usable, weights, first_place, last_served
      FROM turns(wanted_queues, lanes_max, admits, lowest) AS turn;
  END IF;
  shares := share(wanted, usable, weights);
  -- One long lane alone needs no turns, and no row of it for every claim.
  IF cardinality(lanes) > 1 OR ready[1] < 10000 OR last_served < instant - 1000000 THEN
    -- A hint for the next one: whoever serves the lane at the same moment is not waited for.
    UPDATE lanes AS each
       SET served_at = instant, vfloor = greatest(each.vfloor, first_place),
           vtime = greatest(each.vtime, lowest) + portion::bigint * 1000000 / weight
      FROM (SELECT each.id, portion, weight
              FROM unnest(lanes, shares, weights) AS served (id, portion, weight) JOIN lanes AS each USING (id)
             WHERE portion > 0 FOR UPDATE OF each SKIP LOCKED) AS served
     WHERE each.id = served.id;
  END IF;
END $$;

CREATE OR REPLACE FUNCTION gated(wanted_queues text[], gates_max integer, closed json) RETURNS SETOF exchanged
LANGUAGE plpgsql STABLE AS $$
DECLARE
  lowest bigint := floor_of(wanted_queues);
  only_tenant text := wanted_tenant();
BEGIN
  RETURN QUERY
  SELECT 3::smallint, NULL, NULL::integer, NULL, NULL, waiting.tenant, NULL, least(sum(waiting.ready), 2147483647)::integer,
         NULL::integer, NULL::bigint, NULL::bigint, NULL, NULL, NULL::smallint, waiting.needs
    FROM (SELECT lane_counts.needs, lane_counts.tenant, ready,
                 row_number() OVER (ORDER BY greatest(vtime, lowest), vtime, lane_counts.queue, lane_counts.tenant,
                                             lane_counts.needs) AS turn
            FROM lane_counts WHERE lane_counts.queue = ANY (wanted_queues) AND ready > 0 AND is_gated
             AND (only_tenant IS NULL OR lane_counts.tenant = only_tenant)
             AND (closed IS NULL OR (lane_counts.needs, lane_counts.tenant) NOT IN (
                    SELECT gate.needs, gate.tenant FROM json_to_recordset(closed) AS gate (needs text, tenant text)))) AS waiting
   GROUP BY waiting.needs, waiting.tenant ORDER BY min(turn) LIMIT gates_max;
END $$;

-- The worker's one hot verb, for one tenant.
CREATE FUNCTION exchange_for(
  only_tenant text, worker text, wanted_queues text[], wanted integer, new_token text, is_repeat boolean,
  done_ids text[], done_tokens text[], done_results text[], others json,
  parents text[], parent_tokens text[], child_ids text[], child_payloads text[], child_spec_of integer[],
  child_specs json, child_keys text[], child_fingerprints text[], at bigint, admits json, closed json)
RETURNS SETOF exchanged LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM set_config('leaseway.wanted_tenant', only_tenant, true);
  RETURN QUERY SELECT * FROM exchange(worker, wanted_queues, wanted, new_token, is_repeat, done_ids, done_tokens,
                                      done_results, others, parents, parent_tokens, child_ids, child_payloads,
                                      child_spec_of, child_specs, child_keys, child_fingerprints, at, admits, closed);
  PERFORM set_config('leaseway.wanted_tenant', '', true);
END $$;
