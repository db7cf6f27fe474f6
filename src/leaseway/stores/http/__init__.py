"""A store behind a service: the same verbs over HTTP, with a key instead of a database's credentials."""
