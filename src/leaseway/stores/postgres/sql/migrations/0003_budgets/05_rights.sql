-- PostgreSQL lets everybody execute everything, unless it is told otherwise. Who may do what is said in 0001, with the
-- rights to jobs: readers look; workers hold, settle and declare; operators change and forget.
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA :schema FROM PUBLIC;
