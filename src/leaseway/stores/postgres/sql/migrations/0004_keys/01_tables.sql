-- Keys of the API, by id. Of the secret only a hash is kept, and so it is with the sessions of browsers.
-- `scopes` is JSON that only its writer reads. Not to be mixed up with `keys`, which makes submissions idempotent.

CREATE TABLE api_keys (
  id text COLLATE "C" PRIMARY KEY,
  hash text NOT NULL,
  tenant text COLLATE "C" NOT NULL,
  role text NOT NULL,
  scopes text NOT NULL,
  name text NOT NULL,
  created_at bigint NOT NULL,
  expires_at bigint,
  revoked_at bigint,
  used_at bigint
);

CREATE TABLE api_sessions (
  hash text COLLATE "C" PRIMARY KEY,
  key text COLLATE "C" NOT NULL,
  created_at bigint NOT NULL,
  expires_at bigint NOT NULL
);
CREATE INDEX api_sessions_of_key ON api_sessions (key, created_at);
CREATE INDEX api_sessions_expiring ON api_sessions (expires_at);
