-- For every language, and inside the caller's own transaction:
--   SELECT leaseway.submit_job('send', '{"to": "ada@example.org"}', key => 'welcome:42');

-- 26 characters, sortable by time: 10 for the millisecond, 16 by chance.
CREATE FUNCTION new_job_id() RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT string_agg(substr('0123456789abcdefghjkmnpqrstvwxyz', digit + 1, 1), '' ORDER BY place)
    FROM (SELECT place, ((now_us() / 1000) >> (5 * (10 - place)) & 31)::integer AS digit FROM generate_series(1, 10) AS place
          UNION ALL
          SELECT 10 + place, get_byte(uuid_send(gen_random_uuid()), 9 + place % 6) & 31 FROM generate_series(1, 16) AS place)
         AS digits
$$;

CREATE FUNCTION submit_job(
  kind text, payload json DEFAULT '{}', queue text DEFAULT 'default', tenant text DEFAULT 'default',
  priority integer DEFAULT 0, attempts integer DEFAULT 5, lease interval DEFAULT '15 seconds',
  timeout interval DEFAULT NULL, delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL, key text DEFAULT NULL,
  key_retention interval DEFAULT '7 days', shard_key text DEFAULT NULL, cursor json DEFAULT NULL, id text DEFAULT NULL)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  new_id text := coalesce(id, new_job_id());
  fingerprint text := encode(sha256(convert_to(kind || E'\n' || payload::jsonb::text, 'UTF8')), 'hex');
  spec json := json_build_array(json_build_object(
    'queue', queue, 'tenant', tenant, 'kind', kind, 'priority', priority, 'attempts_max', attempts,
    'lease_us', (extract(epoch FROM lease) * 1000000)::bigint, 'timeout_us', (extract(epoch FROM timeout) * 1000000)::bigint,
    'shard_key', shard_key, 'cursor', cursor::text, 'delay_us', coalesce((extract(epoch FROM delay) * 1000000)::bigint, 0),
    'run_at', (extract(epoch FROM run_at) * 1000000)::bigint,
    'key_keep_us', (extract(epoch FROM key_retention) * 1000000)::bigint));
BEGIN
  IF json_typeof(payload) <> 'object' THEN
    RAISE EXCEPTION USING ERRCODE = 'LW002', MESSAGE = 'payload: must be a JSON object, the arguments by name';
  ELSIF coalesce(kind, '') = '' OR coalesce(queue, '') = '' OR coalesce(tenant, '') = '' THEN
    RAISE EXCEPTION USING ERRCODE = 'LW002', MESSAGE = 'kind, queue and tenant: must not be empty';
  ELSIF priority NOT BETWEEN -1000 AND 1000 THEN
    RAISE EXCEPTION USING ERRCODE = 'LW002', MESSAGE = format('priority: must lie in -1000 … 1000 (is %s)', priority);
  ELSIF attempts NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION USING ERRCODE = 'LW002', MESSAGE = format('attempts: must lie in 1 … 1000 (is %s)', attempts);
  ELSIF lease NOT BETWEEN '1 second' AND '1 day' THEN
    RAISE EXCEPTION USING ERRCODE = 'LW002', MESSAGE = format('lease: must lie in 1 second … 1 day (is %s)', lease);
  ELSIF run_at IS NOT NULL AND delay IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'LW002', MESSAGE = 'delay: cannot be given together with run_at';
  END IF;
  RETURN (keep_keyed(ARRAY[new_id], ARRAY[payload::text], ARRAY[1], spec, ARRAY[key], ARRAY[fingerprint], false, now_us()))[1];
END $$;
