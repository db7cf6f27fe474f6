"""leaseway on PostgreSQL beside its peers, on one server, with fsync and synchronous_commit on."""
