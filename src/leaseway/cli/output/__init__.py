"""Output: coloured on a terminal, plain in a pipe, JSON on request.

console   sentences, facts, durations, progress, colour, JSON
table     aligned columns that fit the width of a terminal
work_log  the log lines of a worker
"""
