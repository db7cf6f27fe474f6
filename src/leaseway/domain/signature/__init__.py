"""What the signature of a handler says: whether it takes the context, and the types of its arguments and its result.

reader    a function ─► the struct type of its arguments, the type of its result, or an error with the way out
models    pydantic models and other types that msgspec does not know: how they are written as JSON and read from it
"""
