"""The command line.

    main ─► commands (what one types) ─► verbs (what it does) ─► screen (what one sees)

`commands` and `main` import click and nothing else, so that help and completion come at once; a verb is imported when
it is called.
"""
