-- Before a page: its staging table, and plans that look rows up by their key. A plan that was made while the table was
-- small would read all of it for every page.
SET LOCAL client_min_messages = warning;
SET LOCAL enable_seqscan = off;
SET LOCAL enable_hashjoin = off;
SET LOCAL enable_mergejoin = off;
SET LOCAL jit = off;
CREATE TEMPORARY TABLE IF NOT EXISTS leaseway_page (:staged) ON COMMIT :ending
