"""Virtual time: the real worker in a loop whose clock only runs while something waits.

loop             an event loop that owns time
skipping_loop    the same, and it skips what a worker only does to check something
world            a store, a limiter and a ledger in memory, with the clock of such a loop
"""
