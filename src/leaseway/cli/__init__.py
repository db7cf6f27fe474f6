"""The command line.

    main ─► commands (one module or folder per command) ─► output (tables, colour, JSON)

`main` imports click and nothing else, so that the list of commands and shell completion appear at once; a command is
imported when it is called.
"""
