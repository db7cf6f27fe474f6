"""leaseway on MongoDB beside a plain loop, raw inserts and Agenda, on one server."""
