"""`leaseway demo`: a provider, a fleet, a murder, and a judge that counts for itself."""
