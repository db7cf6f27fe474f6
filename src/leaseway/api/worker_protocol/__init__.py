"""The verbs of the store over HTTP, for workers that have no access to the database.

routes         one POST route per verb, and their OpenAPI schemas
validation     bounds on everything that a worker sends
authorization  what the workers of one tenant must not read or write
               (`api.metering`: the limits and budgets that they may use)
"""
