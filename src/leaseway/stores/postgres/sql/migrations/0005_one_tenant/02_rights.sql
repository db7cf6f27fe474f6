REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA :schema FROM PUBLIC;

-- May do all that a worker does: claim and settle, submit, fire schedules, prune; and look.
CREATE OR REPLACE FUNCTION grant_worker(grantee text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM grant_reader(grantee);
  PERFORM grant_functions(grantee, ARRAY['submit', 'submit_one', 'submit_job', 'ring', 'exchange', 'exchange_for', 'settle_alone',
                                         'renew', 'checkpoint',
                                         'report', 'prune', 'declare_schedules', 'fire', 'declare_limits', 'take',
                                         'give_back', 'vacate', 'keep', 'tell', 'declare_budgets', 'hold_budgets',
                                         'dispatch_hold', 'settle_hold', 'void_hold', 'expire_holds', 'prune_budgets']);
END $$;
