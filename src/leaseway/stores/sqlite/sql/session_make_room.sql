-- A key keeps its newest sessions.
DELETE FROM api_sessions WHERE hash IN (
  SELECT hash FROM api_sessions WHERE key = :key AND hash <> :hash
   ORDER BY created_at DESC, hash DESC LIMIT -1 OFFSET :keep
)
