-- For every language, and inside the caller's own transaction:
--   SELECT leaseway.submit_job('send', '{"to": "ada@example.org"}', key => 'welcome:42');

-- 26 characters, sortable by time: 10 for the millisecond, 16 by chance.
CREATE FUNCTION new_job_id() RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT string_agg(substr('0123456789abcdefghjkmnpqrstvwxyz', digit + 1, 1), '' ORDER BY place)
    FROM (SELECT place, (millisecond >> (5 * (10 - place)) & 31)::integer AS digit
            FROM (SELECT now_us() / 1000 AS millisecond OFFSET 0) AS now CROSS JOIN generate_series(1, 10) AS place
          UNION ALL
          SELECT 10 + place, get_byte(uuid_send(gen_random_uuid()), 9 + place % 6) & 31 FROM generate_series(1, 16) AS place)
         AS digits
$$;

CREATE FUNCTION refuse_unless(is_right boolean, field text, rule text, given anyelement) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF is_right IS NOT TRUE THEN
    RAISE EXCEPTION USING ERRCODE = 'LW002', MESSAGE = format('%s: %s (is %s)', field, rule, coalesce(given::text, 'NULL'));
  END IF;
END $$;

CREATE FUNCTION submit_job(
  kind text, payload json DEFAULT '{}', queue text DEFAULT 'default', tenant text DEFAULT 'default',
  priority integer DEFAULT 0, attempts integer DEFAULT 5, lease interval DEFAULT '15 seconds',
  timeout interval DEFAULT NULL, delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL, key text DEFAULT NULL,
  key_retention interval DEFAULT '7 days', shard_key text DEFAULT NULL, cursor json DEFAULT NULL, id text DEFAULT NULL,
  needs text DEFAULT '')
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  new_id text := coalesce(id, new_job_id());
  fingerprint text := encode(sha256(convert_to(concat(kind, E'\n', payload::jsonb::text), 'UTF8')), 'hex');
  spec json;
BEGIN
  PERFORM refuse_unless(json_typeof(payload) = 'object', 'payload', 'must be a JSON object, the arguments by name', payload);
  PERFORM refuse_unless(octet_length(payload::text) <= 262144, 'payload', 'must have at most 262144 bytes',
                        octet_length(payload::text));
  PERFORM refuse_unless(length(kind) BETWEEN 1 AND 200, 'kind', 'must have 1 to 200 characters', kind);
  PERFORM refuse_unless(length(queue) BETWEEN 1 AND 200, 'queue', 'must have 1 to 200 characters', queue);
  PERFORM refuse_unless(length(tenant) BETWEEN 1 AND 200, 'tenant', 'must have 1 to 200 characters', tenant);
  PERFORM refuse_unless(key IS NULL OR length(key) BETWEEN 1 AND 200, 'key', 'must have 1 to 200 characters', key);
  PERFORM refuse_unless(shard_key IS NULL OR length(shard_key) BETWEEN 1 AND 200, 'shard_key',
                        'must have 1 to 200 characters', shard_key);
  PERFORM refuse_unless(length(new_id) BETWEEN 1 AND 200, 'id', 'must have 1 to 200 characters', id);
  PERFORM refuse_unless(octet_length(needs) <= 1000, 'needs', 'must have at most 1000 bytes', octet_length(needs));
  PERFORM refuse_unless(priority BETWEEN -1000 AND 1000, 'priority', 'must lie in -1000 … 1000', priority);
  PERFORM refuse_unless(attempts BETWEEN 1 AND 1000, 'attempts', 'must lie in 1 … 1000', attempts);
  PERFORM refuse_unless(lease BETWEEN '1 second' AND '1 day', 'lease', 'must lie in 1 second … 1 day', lease);
  PERFORM refuse_unless(timeout IS NULL OR timeout BETWEEN '1 millisecond' AND '100 years', 'timeout',
                        'must be at least a millisecond', timeout);
  PERFORM refuse_unless(delay IS NULL OR delay BETWEEN '0' AND '100 years', 'delay', 'must not be negative', delay);
  PERFORM refuse_unless(run_at IS NULL OR isfinite(run_at), 'run_at', 'must be an instant', run_at);
  PERFORM refuse_unless(run_at IS NULL OR delay IS NULL, 'delay', 'cannot be given together with run_at', delay);
  PERFORM refuse_unless(key_retention BETWEEN '0' AND '100 years', 'key_retention', 'must not be negative', key_retention);
  spec := json_build_array(json_build_object(
    'queue', queue, 'tenant', tenant, 'kind', kind, 'priority', priority, 'attempts_max', attempts,
    'lease_us', (extract(epoch FROM lease) * 1000000)::bigint, 'timeout_us', (extract(epoch FROM timeout) * 1000000)::bigint,
    'shard_key', shard_key, 'cursor', cursor::text, 'delay_us', coalesce((extract(epoch FROM delay) * 1000000)::bigint, 0),
    'run_at', (extract(epoch FROM run_at) * 1000000)::bigint,
    'needs', needs, 'key_keep_us', (extract(epoch FROM key_retention) * 1000000)::bigint));
  RETURN (keep_keyed(ARRAY[new_id], ARRAY[payload::text], ARRAY[1], spec, ARRAY[key], ARRAY[fingerprint], false, now_us()))[1];
END $$;
