-- Rights by role:
--   SELECT leaseway.grant_worker('app_worker');
--
-- No role may write to a table. Every change is a function, which runs with the rights of the schema's owner.

CREATE FUNCTION grant_functions(grantee text, names text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE signature regprocedure;
BEGIN
  EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), grantee);
  EXECUTE format('GRANT SELECT ON migrations TO %I', grantee);
  FOR signature IN SELECT oid FROM pg_proc WHERE pronamespace = current_schema()::regnamespace AND proname = ANY (names) LOOP
    EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %I', signature, grantee);
  END LOOP;
END $$;

-- May read everything except API keys and sessions.
CREATE FUNCTION grant_reader(grantee text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE readable regclass;
BEGIN
  PERFORM grant_functions(grantee, ARRAY['wall_us', 'now_us', 'held_now_us', 'wait_us', 'read_levels']);
  FOR readable IN
    SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'v', 'm')
                               AND relname NOT IN ('api_keys', 'api_sessions')
  LOOP
    EXECUTE format('GRANT SELECT ON %s TO %I', readable, grantee);
  END LOOP;
END $$;

-- May submit jobs; may not read any.
CREATE FUNCTION grant_submitter(grantee text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM grant_functions(grantee, ARRAY[
    'submit', 'submit_one', 'submit_uniform', 'submit_job',
    'submit_one_and_notify', 'send_notification', 'fold_after_submit', 'notify_workers', 'notify_on_commit']);
END $$;

-- May do everything that a worker does: read, submit, claim, settle, fire schedules, prune, use limits and budgets.
CREATE FUNCTION grant_worker(grantee text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM grant_reader(grantee);
  PERFORM grant_submitter(grantee);
  PERFORM grant_functions(grantee, ARRAY[
    'watch_clock', 'beat_worker', 'remove_worker', 'write_pool', 'replace_work_history', 'prune_work_history', 'exchange', 'settle_alone', 'renew', 'checkpoint', 'report_progress', 'prune', 'open_lanes',
    'declare_schedules', 'fire_schedule',
    'declare_limits', 'take_permits', 'return_permits', 'end_calls', 'renew_calls', 'apply_notice',
    'declare_budgets', 'hold_budgets', 'post_budgets', 'dispatch_hold', 'settle_hold', 'void_hold', 'expire_holds', 'prune_budgets']);
END $$;

-- May do everything that the command line and the HTTP API offer, including API keys.
CREATE FUNCTION grant_operator(grantee text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM grant_worker(grantee);
  PERFORM grant_functions(grantee, ARRAY[
    'cancel', 'retry', 'run_now', 'discard', 'pause_schedule', 'pause_lanes', 'resume_lanes', 'set_tenant', 'forget_tenant',
    'drain_worker',
    'change_limit', 'forget_limit', 'change_budget', 'forget_budget', 'correct_hold',
    'add_api_key', 'find_api_key', 'list_api_keys', 'revoke_api_key', 'expire_api_key', 'touch_api_keys',
    'add_api_session', 'find_api_session', 'end_api_session']);
END $$;

-- PostgreSQL lets every role execute new functions by default.
REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA :schema FROM PUBLIC;
