"""For your own tests: a clock that you move, and the contract that every store must keep."""
