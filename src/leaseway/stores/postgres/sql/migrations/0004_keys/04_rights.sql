-- Readers, submitters and workers learn nothing of keys. Operators, and so the service, make them and look them up.
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA :schema FROM PUBLIC;

-- May look at everything but the keys, and change nothing.
CREATE OR REPLACE FUNCTION grant_reader(grantee text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE readable regclass;
BEGIN
  PERFORM grant_functions(grantee, ARRAY['now_us', 'wait_us', 'look']);
  FOR readable IN
    SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'v', 'm')
                               AND relname NOT IN ('api_keys', 'api_sessions')
  LOOP
    EXECUTE format('GRANT SELECT ON %s TO %I', readable, grantee);
  END LOOP;
END $$;

-- May do all that the command line offers: cancel, retry, discard, pause; make keys, and revoke them.
CREATE OR REPLACE FUNCTION grant_operator(grantee text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM grant_worker(grantee);
  PERFORM grant_functions(grantee, ARRAY['cancel', 'replay', 'discard', 'pause', 'set_tenant',
                                         'forget_tenant', 'change_limit', 'forget_limit', 'change_budget', 'forget_budget',
                                         'add_api_key', 'find_api_key', 'list_api_keys', 'revoke_api_key',
                                         'expire_api_key', 'touch_api_keys', 'add_api_session', 'find_api_session',
                                         'end_api_session']);
END $$;
