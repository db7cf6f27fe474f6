"""Errors as one line on stderr, with an exit code.

1 unexpected · 2 the caller can fix it · 3 the store is unavailable, try again · 130 interrupted
"""

import sys
import traceback as tracebacks

import click

from leaseway.cli.output.console import FOREIGN, Lines, Styled, complain, note, render_json
from leaseway.domain.errors import LeasewayError, TransientError, UsageError

UNEXPECTED, USAGE, UNAVAILABLE, INTERRUPTED = 1, 2, 3, 130


def tell(error: BaseException, *, as_json: bool, traceback: bool) -> int:
    """Print the error on stderr; returns the exit code."""
    code = exit_code(error)
    if traceback:
        complain(indented("".join(tracebacks.format_exception(error)).rstrip("\n")))
    if code == INTERRUPTED:
        return code
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        complain(Lines(error.format_message()))
        return code
    if as_json:
        document = {"error": {"code": error_name(error), "message": error_message(error), "exit_code": code}}
        complain(render_json(document, sys.stderr))
    else:
        complain([Styled("error:", "red bold"), " ", indented(error_message(error))])
        if hint := error_hint(error, code, traceback):
            note(hint)
    return code


def indented(text: str) -> Lines:
    """All lines but the first, which may be the caller's own text."""
    return Lines(text.replace("\n", f"\n{FOREIGN}"))


def exit_code(error: BaseException) -> int:
    match error:
        case click.Abort() | KeyboardInterrupt():
            return INTERRUPTED
        case click.ClickException() | UsageError():
            return USAGE
        case TransientError():
            return UNAVAILABLE
    return UNEXPECTED


def error_name(error: BaseException) -> str:
    """The error's class in snake case: store_refused."""
    if isinstance(error, click.ClickException):
        return "usage_error"
    name = type(error).__name__ if isinstance(error, LeasewayError) else "unexpected"
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")


def error_message(error: BaseException) -> str:
    if isinstance(error, click.ClickException):
        message = error.format_message()
        return message[:1].lower() + message[1:]
    if isinstance(error, LeasewayError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def error_hint(error: BaseException, code: int, traceback: bool) -> str:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"See: {error.ctx.command_path} --help"
    return (
        "This is an unexpected error. Run again with --traceback to see where it occurred."
        if code == UNEXPECTED and not traceback
        else ""
    )
