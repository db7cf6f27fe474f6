-- The newest row so far; what is inserted next comes behind it.
SELECT coalesce(max(seq), 0) FROM jobs
