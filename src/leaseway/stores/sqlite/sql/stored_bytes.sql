-- The size of the last :count jobs that this transaction has stored.
SELECT coalesce(sum(payload + rest), 0) FROM job_sizes WHERE seq > last_insert_rowid() - :count
