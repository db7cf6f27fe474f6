-- What a browser gets for a key.

CREATE FUNCTION add_api_session(new_hash text, of_key text, at bigint, expires bigint,
                                sessions_max integer, forget_max integer, instant bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  DELETE FROM api_sessions WHERE hash IN (
    SELECT hash FROM api_sessions WHERE expires_at <= coalesce(instant, now_us()) LIMIT forget_max
       FOR UPDATE SKIP LOCKED
  );
  DELETE FROM api_sessions WHERE hash IN (
    SELECT hash FROM api_sessions WHERE key = of_key AND hash <> new_hash
     ORDER BY created_at DESC, hash DESC OFFSET sessions_max - 1
  );
  INSERT INTO api_sessions (hash, key, created_at, expires_at) VALUES (new_hash, of_key, at, expires)
  ON CONFLICT (hash) DO NOTHING;
END $$;

CREATE FUNCTION find_api_session(session_hash text) RETURNS SETOF api_sessions LANGUAGE sql STABLE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
  SELECT * FROM api_sessions WHERE hash = session_hash
$$;

CREATE FUNCTION end_api_session(session_hash text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
  DELETE FROM api_sessions WHERE hash = session_hash;
  RETURN FOUND;
END $$;
