REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA :schema FROM PUBLIC;

CREATE OR REPLACE FUNCTION grant_functions(grantee text, names text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE signature regprocedure;
BEGIN
  -- Who may submit, may do so in every way.
  IF 'submit_one' = ANY (names) THEN
    names := names || ARRAY['submit_fresh', 'submit_fresh_and_ring', 'hint', 'tidy'];
  END IF;
  EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), grantee);
  EXECUTE format('GRANT SELECT ON migrations TO %I', grantee);
  FOR signature IN SELECT oid FROM pg_proc WHERE pronamespace = current_schema()::regnamespace AND proname = ANY (names) LOOP
    EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %I', signature, grantee);
  END LOOP;
END $$;

-- Those who submit already need not be granted it again.
DO $$
DECLARE submitter name;
BEGIN
  FOR submitter IN
    SELECT DISTINCT rolname FROM pg_proc CROSS JOIN aclexplode(proacl) AS held JOIN pg_roles ON pg_roles.oid = held.grantee
     WHERE pronamespace = current_schema()::regnamespace AND proname = 'submit_one' AND held.grantee <> proowner
  LOOP
    PERFORM grant_functions(submitter, ARRAY['submit_one']);
  END LOOP;
END $$;
