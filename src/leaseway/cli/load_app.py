"""Load an App from `module:app`, with an error that says what is wrong otherwise."""

from types import ModuleType

from leaseway.app import App
from leaseway.domain.errors import UsageError
from leaseway.imports.run.assembly import MISSING, find_attribute, load_module, refuse_path
from leaseway.worker.submit import JobHandle


def load_app(name: str) -> App:
    """The App for `tasks:app`, or for `tasks` if the module has only one."""
    module_name, _, attribute = name.partition(":")
    module = load_module(refuse_path(module_name, name))
    return named_app(module, attribute) if attribute else only_app(module)


def named_app(module: ModuleType, attribute: str) -> App:
    found = find_attribute(module, attribute)
    if found is MISSING:
        raise UsageError(f"module {module.__name__!r} has no {attribute!r}; {apps_in_words(module)}")
    if not isinstance(found, App):
        kind = "JobHandle" if isinstance(found, JobHandle) else type(found).__name__
        raise UsageError(f"{module.__name__}:{attribute} is not an App but a {kind}; {apps_in_words(module)}")
    return found


def only_app(module: ModuleType) -> App:
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if len(apps) != 1:
        raise UsageError(f"name one App of {module.__name__!r}; {apps_in_words(module)}")
    return next(iter(apps.values()))


def apps_in_words(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    if not names:
        return "it has no App: write `from leaseway import App` and `app = App()`, and decorate jobs with @app.job"
    return f"it has: {', '.join(f'{module.__name__}:{name}' for name in names)}"
