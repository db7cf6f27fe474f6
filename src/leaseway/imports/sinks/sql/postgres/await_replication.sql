-- For a repetition that finds nothing left to write: this commit waits for everything before it, like the first try.
SELECT pg_logical_emit_message(true, 'leaseway', '')
