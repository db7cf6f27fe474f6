"""The structs that routes return, and how domain values become them.

They are the only description of a response: the OpenAPI document is derived from them, and the command line prints the
same documents with --json. Nothing here imports the web framework, so that the command line starts fast.
"""
