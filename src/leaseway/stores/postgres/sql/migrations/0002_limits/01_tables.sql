-- Limits, for a whole fleet: `domain/buckets.py` says what every column means and every function decides.
-- What a limit is, lives as long as any other table. How much of it is used is UNLOGGED: a crash and a promotion empty
-- these tables, all three together, and so cannot be missed. A clean restart keeps them.

CREATE TABLE limits (
  name text COLLATE "C" PRIMARY KEY,
  version integer NOT NULL DEFAULT 1,
  definition jsonb NOT NULL,
  -- What the code said last. NULL: only people have spoken.
  declared jsonb,
  -- The definition, sized: the windows in microseconds, and of each the burst and the nanoseconds per token.
  windows bigint[] NOT NULL,
  bursts bigint[] NOT NULL,
  paces bigint[] NOT NULL,
  concurrency integer,
  lease_us bigint NOT NULL
);

CREATE UNLOGGED TABLE levels (
  name text COLLATE "C" NOT NULL,
  of_limit text COLLATE "C" NOT NULL,
  since bigint NOT NULL DEFAULT -1,
  blocked_until bigint NOT NULL DEFAULT 0,
  percent integer NOT NULL DEFAULT 100,
  generation integer NOT NULL DEFAULT 0,
  slowed_at bigint NOT NULL DEFAULT 0,
  -- Whether there may be seats.
  seated boolean NOT NULL DEFAULT false,
  -- The buckets, side by side.
  windows bigint[] NOT NULL DEFAULT '{}',
  tats bigint[] NOT NULL DEFAULT '{}',
  turns bigint[] NOT NULL DEFAULT '{}',
  paces bigint[] NOT NULL DEFAULT '{}',
  PRIMARY KEY (of_limit, name)
) WITH (
  -- Few rows, written all the time: room to write them again on the same page.
  fillfactor = 25, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);
-- An order that has nothing to do with the names: whoever adds a level looks at some others by it.
CREATE INDEX levels_scattered ON levels (hashtext(name));

CREATE UNLOGGED TABLE seats (
  name text COLLATE "C" NOT NULL,
  of_limit text COLLATE "C" NOT NULL,
  holder text COLLATE "C" NOT NULL,
  count bigint NOT NULL,
  until bigint NOT NULL,
  -- The fence under which it was taken.
  since bigint NOT NULL,
  PRIMARY KEY (of_limit, name, holder)
) WITH (
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);

-- One row: everything before `since` is unknown. It says in which table it was written, so that a dump that is restored
-- elsewhere brings levels, but no fence under which they would count.
CREATE UNLOGGED TABLE fence (
  made_in oid PRIMARY KEY,
  since bigint NOT NULL
);

-- What the verbs know about a limit.
CREATE TYPE sizing AS (
  windows bigint[],
  bursts bigint[],
  paces bigint[],
  concurrency integer,
  lease_us bigint
);
