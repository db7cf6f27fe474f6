"""Rate limits.

limit                 `Limit`, its stored definition, and how it is sized
buckets               every decision about permits
validation            checks of a limiter's arguments
rate_limit_headers    what a provider's reply reports about its limits
"""
