-- Creates the staging table of a page, and forces plans that look rows up by key: a plan made while the table was small
-- would scan the whole table for every page.
SET LOCAL client_min_messages = warning;
SET LOCAL enable_seqscan = off;
SET LOCAL enable_hashjoin = off;
SET LOCAL enable_mergejoin = off;
SET LOCAL jit = off;
CREATE TEMPORARY TABLE IF NOT EXISTS leaseway_page (:staged) ON COMMIT :ending
