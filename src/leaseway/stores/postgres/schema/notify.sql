-- Notifying workers that there may be work. A notification is only a hint, so its transactions do not wait for the
-- disk.
--
-- PostgreSQL serializes the commits of all transactions that contain a NOTIFY. Notifications are therefore sent by
-- transactions of their own, not by the transaction that stores the jobs. The exception is a caller's own transaction,
-- after which leaseway cannot send anything.

CREATE FUNCTION send_notification() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  PERFORM pg_notify('leaseway.' || current_schema(), '');
END $$;

-- For a caller's own transaction: sent when it commits. The caller's settings stay as they are, because its commit must
-- wait for the disk.
CREATE FUNCTION notify_on_commit() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM pg_notify('leaseway.' || current_schema(), '');
END $$;

-- Submitters add lane changes; folding them here keeps their number bounded while no worker runs.
CREATE FUNCTION fold_after_submit() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  PERFORM fold_lane_changes(1000);
END $$;

CREATE FUNCTION notify_workers() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  PERFORM pg_notify('leaseway.' || current_schema(), '');
  PERFORM fold_lane_changes(1000);
END $$;

-- Store one job and notify the workers in one round trip but separate transactions. A procedure can only commit if it
-- has neither SECURITY DEFINER nor SET clauses, so this one names the schema explicitly. The first COMMIT stores the
-- job. Errors after it are ignored where possible; if the second COMMIT fails, the client must treat the outcome as
-- unknown.
CREATE PROCEDURE submit_one_and_notify(
  new_id text, new_payload text, queue text, tenant text, kind text, priority smallint, attempts_max integer,
  lease_us bigint, timeout_us bigint, shard_key text, cursor text, delay_us bigint, run_at bigint, needs text, at bigint)
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM :schema.submit_one(new_id, new_payload, queue, tenant, kind, priority, attempts_max, lease_us, timeout_us,
                             shard_key, cursor, delay_us, run_at, needs, at);
  COMMIT;
  BEGIN
    PERFORM :schema.send_notification();
  EXCEPTION WHEN OTHERS OR query_canceled THEN
    NULL;
  END;
  COMMIT;
  BEGIN
    PERFORM :schema.fold_after_submit();
  EXCEPTION WHEN OTHERS OR query_canceled THEN
    NULL;
  END;
END $$;
