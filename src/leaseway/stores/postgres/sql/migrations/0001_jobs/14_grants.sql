-- Rights by what a role does. Nobody writes to a table: every change is a function, which runs with its owner's rights.
--   SELECT leaseway.grant_worker('app_worker');

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA :schema FROM PUBLIC;

CREATE FUNCTION grant_functions(grantee text, names text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE signature regprocedure;
BEGIN
  EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), grantee);
  EXECUTE format('GRANT SELECT ON migrations TO %I', grantee);
  FOR signature IN SELECT oid FROM pg_proc WHERE pronamespace = current_schema()::regnamespace AND proname = ANY (names) LOOP
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', signature, grantee);
  END LOOP;
END $$;

-- May look at everything, and change nothing.
CREATE FUNCTION grant_reader(grantee text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM grant_functions(grantee, ARRAY['now_us', 'wait_us', 'look']);
  EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO %I', current_schema(), grantee);
END $$;

-- May submit jobs, and knows nothing of the others.
CREATE FUNCTION grant_submitter(grantee text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM grant_functions(grantee, ARRAY['submit', 'submit_one', 'submit_job', 'ring']);
END $$;

-- May do all that a worker does: claim and settle, submit, fire schedules, prune; and look.
CREATE FUNCTION grant_worker(grantee text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM grant_reader(grantee);
  PERFORM grant_functions(grantee, ARRAY['submit', 'submit_one', 'submit_job', 'ring', 'exchange', 'settle_alone', 'renew', 'checkpoint',
                                         'report', 'prune', 'declare_schedules', 'fire', 'declare_limits', 'take',
                                         'give_back', 'vacate', 'keep', 'tell', 'declare_budgets', 'hold_budgets',
                                         'dispatch_hold', 'settle_hold', 'void_hold', 'expire_holds', 'prune_budgets']);
END $$;

-- May do all that the command line offers: cancel, retry, discard, pause.
CREATE FUNCTION grant_operator(grantee text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM grant_worker(grantee);
  PERFORM grant_functions(grantee, ARRAY['cancel', 'replay', 'discard', 'pause', 'set_tenant',
                                         'forget_tenant', 'change_limit', 'forget_limit', 'change_budget', 'forget_budget']);
END $$;

REVOKE EXECUTE ON FUNCTION grant_functions(text, text[]), grant_reader(text), grant_submitter(text), grant_worker(text),
                           grant_operator(text) FROM PUBLIC;
