"""`leaseway demo`: an import of 235,000 places, a fleet, a murder, and a judge that counts for itself."""
