-- Jobs that jobs have submitted, stored with the settlement of their parents. Nobody is there to be told of a conflict
-- of keys: the first job stands.
CREATE FUNCTION keep_children(fertile text[], parents text[], ids text[], payloads text[], spec_of integer[], specs json,
                              keys text[], fingerprints text[], instant bigint)
RETURNS void LANGUAGE sql AS $$
  SELECT keep_keyed(array_agg(id ORDER BY place), array_agg(payload ORDER BY place), array_agg(n ORDER BY place), specs,
                    CASE WHEN keys IS NOT NULL THEN array_agg(key ORDER BY place) END,
                    array_agg(fingerprint ORDER BY place), true, instant)
    FROM unnest(parents, ids, payloads, spec_of, keys, fingerprints) WITH ORDINALITY
         AS child (parent, id, payload, n, key, fingerprint, place)
   WHERE parent = ANY (fertile)
$$;

-- All that handing back means: settlements, and the jobs that come with them. Answers who came too late.
CREATE FUNCTION hand_back(
  done_ids text[], done_tokens text[], done_results text[], others json,
  parents text[], parent_tokens text[], child_ids text[], child_payloads text[], child_spec_of integer[],
  child_specs json, child_keys text[], child_fingerprints text[], instant bigint)
RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE fertile text[];
BEGIN
  IF parents IS NOT NULL THEN
    -- Locked before they are settled: whose lease is still held now will be accepted.
    fertile := ARRAY(SELECT jobs.id FROM unnest(parents, parent_tokens) AS sent (id, token)
                       JOIN jobs ON jobs.id = sent.id AND jobs.token = sent.token
                      ORDER BY jobs.id FOR UPDATE OF jobs);
  END IF;
  RETURN QUERY SELECT settle(done_ids, done_tokens, done_results, others, instant);
  IF fertile <> '{}' THEN
    PERFORM keep_children(fertile, parents, child_ids, child_payloads, child_spec_of, child_specs, child_keys,
                          child_fingerprints, instant);
  END IF;
END $$;

-- Settlements alone: for the rare exchange that settles one job twice, which goes step by step.
CREATE FUNCTION settle_alone(
  done_ids text[], done_tokens text[], done_results text[], others json,
  parents text[], parent_tokens text[], child_ids text[], child_payloads text[], child_spec_of integer[],
  child_specs json, child_keys text[], child_fingerprints text[], at bigint DEFAULT NULL)
RETURNS SETOF text LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
  SELECT hand_back(done_ids, done_tokens, done_results, others, parents, parent_tokens, child_ids, child_payloads,
                   child_spec_of, child_specs, child_keys, child_fingerprints, coalesce(at, now_us()))
$$;

-- The worker's one hot verb: settle, take back, promote, claim, in one transaction and one round trip.
-- Plans do not depend on statistics: of a table that empties and fills within a second they are always wrong.
CREATE FUNCTION exchange(
  worker text, wanted_queues text[], wanted integer, new_token text, is_repeat boolean,
  done_ids text[], done_tokens text[], done_results text[], others json,
  parents text[], parent_tokens text[], child_ids text[], child_payloads text[], child_spec_of integer[],
  child_specs json, child_keys text[], child_fingerprints text[], at bigint DEFAULT NULL, admits json DEFAULT NULL,
  closed json DEFAULT NULL)
RETURNS SETOF exchanged LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE instant bigint := coalesce(at, now_us());
BEGIN
  IF done_ids IS NOT NULL OR others IS NOT NULL THEN
    RETURN QUERY SELECT 1::smallint, lost, NULL::integer, NULL, NULL, NULL, NULL, NULL::integer, NULL::integer,
                        NULL::bigint, NULL::bigint, NULL, NULL, NULL::smallint, NULL
                   FROM hand_back(done_ids, done_tokens, done_results, others, parents, parent_tokens, child_ids,
                                  child_payloads, child_spec_of, child_specs, child_keys, child_fingerprints, instant)
                        AS lost;
  END IF;
  PERFORM reclaim(1000, instant);
  PERFORM promote(1000, instant);
  IF is_repeat THEN
    RETURN QUERY SELECT * FROM adopt(worker, new_token, instant);
  END IF;
  IF wanted > 0 AND NOT (is_repeat AND FOUND) THEN
    RETURN QUERY SELECT * FROM claim(worker, wanted_queues, wanted, new_token, 100, admits, instant);
  END IF;
  IF wanted > 0 AND any_gates(wanted_queues) THEN
    RETURN QUERY SELECT * FROM gated(wanted_queues, 100, closed);
  END IF;
  RETURN QUERY SELECT 2::smallint, id, NULL::integer, NULL, NULL, NULL, NULL, NULL::integer, NULL::integer,
                      NULL::bigint, NULL::bigint, NULL, NULL, NULL::smallint, NULL
                 FROM jobs WHERE stage = 2 AND cancel_requested AND owner = worker ORDER BY seq;
  PERFORM fold(200);
END $$;
