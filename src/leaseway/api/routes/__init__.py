"""The routes of the service, one module per resource. Each route declares the scope that it requires."""
