"""Resolve `module:name` to an object, with an error message for everything that can be wrong."""

import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from leaseway.domain.errors import UsageError

MISSING = object()


def refuse_path(module: str, name: str, example: str = "MODULE:APP, for example tasks:app") -> str:
    if module.endswith(".py") or "/" in module:
        dotted = module.removeprefix("./").removesuffix(".py").replace("/", ".")
        raise UsageError(
            f"{name!r} is a path; write the module name as in an import statement: {name.replace(module, dotted)}"
        )
    if not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(f"{name!r} is not a module name; write {example}")
    return module


def load_module(name: str) -> ModuleType:
    """Import the module with the current directory first in `sys.path`, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"module {error.name!r} was not found in {here} or among the installed packages; "
                "change to the folder that contains it, or correct the name"
            ) from error
        raise UsageError(
            f"importing {name!r} failed: {error}{error_location(error)}; install the missing package"
        ) from error
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise UsageError(f"importing {name!r} failed: {what}{error_location(error)}") from error


def error_location(error: BaseException) -> str:
    """The location of the error in the user's code, without the frames of the import machinery."""
    if isinstance(error, SyntaxError):
        return ""  # the message of a SyntaxError contains the location
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    last = frames[-1]
    return f" ({Path(last.filename).name}, line {last.lineno})" if len(frames) > 1 else ""


def find_attribute(module: ModuleType, attribute: str) -> Any:
    """Returns `MISSING` if the attribute does not exist."""
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, MISSING)
    return found
