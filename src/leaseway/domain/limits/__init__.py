"""Rate limits.

limit                 `Limit` and its stored definition
buckets               how a limit is sized, and every decision about permits
validation            checks of a limiter's arguments
rate_limit_headers    what a provider's reply reports about its limits
"""
