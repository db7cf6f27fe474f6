"""`./dev house`: measures how easy the code base is to read and compares each figure with its aim.

source    parses the modules, classes, functions, imports and tests of a checkout
sql       finds the schema files that a PostgreSQL function uses
job       runs one job in a process of its own and records the Python files that it executes
measures  one function per row of the table
"""
