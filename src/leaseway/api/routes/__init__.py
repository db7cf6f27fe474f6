"""The routes of the service, by resource. Each route declares the scope that it requires."""
