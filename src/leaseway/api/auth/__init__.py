"""Authentication and rate limits.

authentication     API key, JWT or session cookie ─► Caller
jwt                JSON Web Tokens, and the public keys of their issuer
origin_checks      the Host and Origin headers
tenant_rate_limit  requests per minute and at once, per tenant
"""
