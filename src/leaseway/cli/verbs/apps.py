"""From `module:app` to an App, with an answer to everything that may be wrong with it."""

import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from leaseway.app import App
from leaseway.domain.errors import UsageError


def load_app(name: str) -> App:
    """The App that a person means by `tasks:app`, or by `tasks` if there is only one in it."""
    module_name, _, attribute = name.partition(":")
    module = load_module(refuse_path(module_name, name))
    return named_app(module, attribute) if attribute else only_app(module)


def refuse_path(module: str, name: str) -> str:
    if module.endswith(".py") or "/" in module:
        dotted = module.removeprefix("./").removesuffix(".py").replace("/", ".")
        raise UsageError(f"{name!r} is a path; write the module's name as in an import: {name.replace(module, dotted)}")
    if not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(f"{name!r} names no module; write MODULE:APP, for example tasks:app")
    return module


def load_module(name: str) -> ModuleType:
    """Import it with the current folder first in line, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"there is no module {error.name!r} in {here} or among the installed packages; "
                "go to the folder that holds it, or correct the name"
            ) from error
        raise UsageError(f"importing {name!r} failed: {error}{where(error)}; install what is missing") from error
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise UsageError(f"importing {name!r} failed: {what}{where(error)}") from error


def where(error: BaseException) -> str:
    """The place in the user's code, not in the machinery of importing."""
    if isinstance(error, SyntaxError):
        return ""  # its text says so
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    last = frames[-1]
    return f" ({Path(last.filename).name}, line {last.lineno})" if len(frames) > 1 else ""


def named_app(module: ModuleType, attribute: str) -> App:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"module {module.__name__!r} has no {attribute!r}; {apps_in_words(module)}")
        found = getattr(found, part)
    if not isinstance(found, App):
        kind = type(found).__name__
        raise UsageError(f"{module.__name__}:{attribute} is no App but a {kind}; {apps_in_words(module)}")
    return found


def only_app(module: ModuleType) -> App:
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if len(apps) != 1:
        raise UsageError(f"say which App of {module.__name__!r} you mean; {apps_in_words(module)}")
    return next(iter(apps.values()))


def apps_in_words(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    if not names:
        return (
            "it has no App at all: write `from leaseway import App` and `app = App()`, and decorate jobs with @app.job"
        )
    return f"it has: {', '.join(f'{module.__name__}:{name}' for name in names)}"
