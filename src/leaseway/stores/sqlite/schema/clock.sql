-- One row: the state of the store's clock since the last boot of the machine; see leaseway.domain.store_clock.
CREATE TABLE clock (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  boot TEXT NOT NULL,
  ahead_us INTEGER NOT NULL,
  held_since INTEGER
) STRICT;
