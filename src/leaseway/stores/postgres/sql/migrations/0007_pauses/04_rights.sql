REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA :schema FROM PUBLIC;

-- May do all that the command line offers: cancel, retry, discard, pause; make keys, and revoke them.
CREATE OR REPLACE FUNCTION grant_operator(grantee text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM grant_worker(grantee);
  PERFORM grant_functions(grantee, ARRAY['cancel', 'replay', 'discard', 'pause', 'set_tenant',
                                         'forget_tenant', 'change_limit', 'forget_limit', 'change_budget', 'forget_budget',
                                         'change_limit_from', 'change_budget_from', 'pause_lanes', 'resume_lanes',
                                         'add_api_key', 'find_api_key', 'list_api_keys', 'revoke_api_key',
                                         'expire_api_key', 'touch_api_keys', 'add_api_session', 'find_api_session',
                                         'end_api_session']);
END $$;
