"""One file per arrow of the way through the house.

submit ─► store ─► exchange ─► run handler ─► settle ─► exchange …
"""
