-- Which boot of the machine the levels belong to, and since when.
CREATE TABLE fence (
    one       INTEGER PRIMARY KEY CHECK (one = 1),
    identity  TEXT    NOT NULL,
    since     INTEGER NOT NULL,
    ahead_us  INTEGER NOT NULL,  -- from the clock of the machine to ours
    latest    INTEGER NOT NULL   -- a wall clock never goes back behind this
) STRICT;

CREATE TABLE definitions (
    name       TEXT    PRIMARY KEY,
    definition TEXT    NOT NULL,
    declared   TEXT,             -- what the code said last; NULL: only an operator has spoken
    version    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE levels (
    definition TEXT NOT NULL,
    name       TEXT NOT NULL,
    level      TEXT NOT NULL,
    idle_at    INTEGER,          -- from then on it may be forgotten
    PRIMARY KEY (definition, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX levels_idle ON levels (idle_at) WHERE idle_at IS NOT NULL;
