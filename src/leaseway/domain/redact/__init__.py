"""Remove secrets from text before it is stored, logged or shown.

Two rules apply to every text:

by place   passwords in URLs, values of parameters, fields, headers and elements that are named like secrets, and
           credentials that are recognizable by their form (`Bearer …`, JWTs, keys with a known prefix)
by value   secrets that this process knows, such as its API key or the keys in its environment variables, in every
           usual encoding: plain, percent-encoded, JSON-escaped, `repr`, HTML entities, base64, hexadecimal,
           quoted-printable, and with accents in the other Unicode form

Text is redacted before it is cut to a length, because a part of a secret is a secret as well.

text     the two rules
names    which names mean a secret, by the words in them
"""

from leaseway.domain.redact.text import MASK, NO_SECRETS, Redactor, passwords_in, redact, redact_url, secrets_in

__all__ = ["MASK", "NO_SECRETS", "Redactor", "passwords_in", "redact", "redact_url", "secrets_in"]
