"""From `module:app` to an App, with an answer to everything that may be wrong with it."""

from types import ModuleType

from leaseway.app import App
from leaseway.domain.errors import UsageError
from leaseway.imports.load_object import MISSING, found_in, load_module, refuse_path


def load_app(name: str) -> App:
    """The App that a person means by `tasks:app`, or by `tasks` if there is only one in it."""
    module_name, _, attribute = name.partition(":")
    module = load_module(refuse_path(module_name, name))
    return named_app(module, attribute) if attribute else only_app(module)


def named_app(module: ModuleType, attribute: str) -> App:
    found = found_in(module, attribute)
    if found is MISSING:
        raise UsageError(f"module {module.__name__!r} has no {attribute!r}; {apps_in_words(module)}")
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
