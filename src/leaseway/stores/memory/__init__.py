"""The store that lives in one process and dies with it: for tests, simulation and a first try."""
