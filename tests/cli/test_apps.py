"""MODULE:APP, and every way in which it can be wrong."""

import pytest
from tests.cli.place import Place

BROKEN = {
    "several": "from leaseway import App\na = App()\nb = App()\n",
    "twice": "from leaseway import App\napp = App()\nsame = app\n",
    "empty": "",
    "raising": "def f():\n    return 1 / 0\n\nf()\n",
    "leaving": "import sys\nsys.exit(3)\n",
    "lacking": "import no_such_package\n",
    "malformed": "def\n",
    "two_jobs": "from leaseway import App\napp = App()\n@app.job\ndef f(): ...\n@app.job(name='f')\ndef g(): ...\n",
    "odd_store": "from leaseway import App\napp = App('oracle://x')\n",
}


@pytest.mark.parametrize("command", [["work"], ["submit"]])
@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nowhere:app", "module 'nowhere' was not found"),
        ("tasks.deeper:app", "tasks"),
        ("tasks:aap", "module 'tasks' has no 'aap'; it has: tasks:app"),
        ("tasks:add", "tasks:add is not an App but a JobHandle; it has: tasks:app"),
        ("tasks:app.kinds", "is not an App but a dict"),
        ("tasks.py", "is a path; write the module name as in an import statement: tasks"),
        ("./tasks.py:app", "as in an import statement: tasks:app"),
        ("sub/tasks.py:app", "as in an import statement: sub.tasks:app"),
        (":app", "is not a module name; write MODULE:APP"),
        ("my-tasks", "is not a module name"),
        ("several", "name one App of 'several'; it has: several:a, several:b"),
        ("empty", "it has no App"),
        ("raising", "importing 'raising' failed: ZeroDivisionError: division by zero (raising.py, line 2)"),
        ("leaving", "importing 'leaving' failed: SystemExit: 3"),
        ("lacking", "No module named 'no_such_package' (lacking.py, line 1); install the missing package"),
        ("malformed", "malformed.py, line 1"),
        ("two_jobs", "there are two jobs named 'f'"),
        ("odd_store", "oracle:// is not a store"),
    ],
)
def test_an_app_that_cannot_be_had_is_explained(place: Place, command: list[str], name: str, complaint: str) -> None:
    """It is the first argument that a new user types, and often wrong."""
    for module, text in BROKEN.items():
        (place.folder / f"{module}.py").write_text(text)
    answer = place.run(*command, name, *(["add"] if command == ["submit"] else []))
    assert answer.code == 2
    assert complaint in answer.err


def test_one_app_with_two_names_is_one_app(place: Place) -> None:
    """An alias must not make the user choose between two names of the same app."""
    (place.folder / "twice.py").write_text(BROKEN["twice"])
    assert "there is no job named 'x'" in place.run("submit", "twice", "x").err


def test_a_folder_of_modules_is_a_package(place: Place) -> None:
    """Real projects keep their app in a package, not in one file."""
    (place.folder / "inner").mkdir()
    (place.folder / "tasks.py").rename(place.folder / "inner" / "tasks.py")
    place.ok("submit", "inner.tasks:app", "add", "x=1")
    place.ok("submit", "inner.tasks", "add", "x=1")


def test_the_traceback_of_a_broken_module_is_there_for_those_who_ask(place: Place) -> None:
    """A user whose module fails to import needs the line in that module."""
    (place.folder / "raising.py").write_text(BROKEN["raising"])
    assert "ZeroDivisionError" in place.run("work", "raising", "--traceback").err
    answer = place.process("work", "raising", LEASEWAY_TRACEBACK="1")
    assert "Traceback" in answer.err
    assert answer.code == 2
