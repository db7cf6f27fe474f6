"""The runner of the documents accepts the markup that it describes and rejects broken examples."""

import os
import re
import socket
from pathlib import Path

import pytest
from tests.docs import document
from tests.docs.document import OPTIONS, DocumentError, broken_links, run_document


def fenced(*parts: tuple[str, str]) -> str:
    return "\n".join(f"Some prose.\n\n```{info}\n{text}\n```\n" for info, text in parts)


WORKING = {
    "a titled file is imported later": [
        ('python title="tasks.py"', "answer = 42"),
        ("python", "from tasks import answer\nassert answer == 42"),
        ("console", "$ python -c 'import tasks; print(tasks.answer)'\n42"),
    ],
    "a titled file in a folder": [
        ('toml title="conf/a.toml"', "a = 1"),
        ("console", "$ cat conf/a.toml\na = 1"),
    ],
    "an expected exception": [("python raises", "raise SystemExit(3)")],
    "a block with a reason not to run": [('python no-run reason="needs a server"', "import nowhere")],
    "an ellipsis within and across lines": [("console", "$ printf 'a 17 b\\nc\\nd\\n'\na ... b\n...\nd")],
    "an exit code": [("console exit=3", "$ true\n$ echo no; exit 3\nno")],
    "a continued command": [("console", "$ echo one \\\n    two\none two")],
    "an export for later": [
        ("console", "$ export WHO=me"),
        ("console", "$ echo $WHO\nme"),
        ("sh", 'test "$WHO" = me'),
    ],
    "a command of ./dev": [("console", "$ ./dev check"), ("sh", "./dev test -k lease")],
    "other languages": [
        ("text", "$ false"),
        ("mermaid", "graph TD"),
        ("", "$ false"),
        ("sql", "nonsense"),
    ],
}

FAILING = {
    "a script that fails": ([("python", "assert False")], "AssertionError"),
    "a script that should raise": ([("python raises", "pass")], "should raise"),
    "python that does not compile": ([('python title="tasks.py"', "def")], "invalid syntax"),
    "python that is not run and does not compile": (
        [('python no-run reason="slow"', "def")],
        "invalid syntax",
    ),
    "no reason not to run": ([("python no-run", "pass")], "needs a reason"),
    "a misspelt option": ([("python norun", "pass")], "norun"),
    "a file outside": ([('python title="../tasks.py"', "pass")], "name of a file"),
    "a file of another document": ([("python", "import tasks")], "ModuleNotFoundError"),
    "a command that fails": ([("console", "$ false\n$ true")], "exit code 1, expected 0"),
    "a command that fails after printing": ([("console", "$ echo a; false\na")], "exit code 1, expected 0"),
    "a command that should fail": ([("console exit=2", "$ true")], "exit code 0, expected 2"),
    "other output": ([("console", "$ echo one\ntwo")], "actual output:\none"),
    "more output than shown": ([("console", "$ printf 'a\\nb\\n'\na")], "actual output:\na\nb"),
    "a console without a command": ([("console", "leaseway demo")], "must start with a command"),
    "a shell line that fails": ([("sh", "false\ntrue")], "exit code 1"),
    "a shell script with bad syntax": ([('sh no-run reason="slow"', "if true")], "not a valid shell command"),
    "an unknown ./dev command": ([("console", "$ ./dev tset")], "does not list 'tset'"),
    "an unknown ./dev command in a script": ([("sh", "./dev tset")], "does not list 'tset'"),
    "an end by name": ([("sh", "pkill -f no-such-process || true")], "keep the process id in a file"),
    "an end by name at a prompt": ([("console", "$ killall no-such-process || true")], "keep the process id in a file"),
    "a program that a bare machine lacks": ([("console", "$ git --version")], "exit code 127, expected 0"),
    "an option that curl.py does not know": ([("console", "$ curl --compressed http://localhost")], "exit code 2"),
    "bad toml": ([("toml", "a =")], "toml"),
    "bad json": ([("json", "{a}")], "json"),
}


@pytest.mark.parametrize("parts", WORKING.values(), ids=WORKING.keys())
def test_the_described_markup_works(parts: list[tuple[str, str]], tmp_path: Path) -> None:
    """Authors rely on the description at the top of document.py."""
    assert run_document(fenced(*parts), tmp_path) == sum(info.split(" ")[0] in OPTIONS for info, _ in parts)


@pytest.mark.parametrize(("parts", "complaint"), FAILING.values(), ids=FAILING.keys())
def test_a_broken_example_is_reported(parts: list[tuple[str, str]], complaint: str, tmp_path: Path) -> None:
    """If the runner lets a broken example pass, the document looks proven and is not."""
    with pytest.raises(DocumentError, match=re.escape(complaint)):
        run_document(fenced(*parts), tmp_path)


def test_a_block_in_a_list_is_found_with_its_line(tmp_path: Path) -> None:
    """Authors indent blocks under list items, and an error must lead to the right line."""
    with pytest.raises(DocumentError, match="line 3 "):
        run_document("1. First:\n\n   ```python\n   assert False\n   ```\n", tmp_path)


def test_settings_of_the_suite_do_not_reach_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that works only with the suite's store setting does not work for its readers."""
    monkeypatch.setenv("LEASEWAY_STORE", "memory://")
    run_document(fenced(("console", '$ echo "[$LEASEWAY_STORE]"\n[]')), tmp_path)


def test_a_port_of_a_document_may_be_taken(tmp_path: Path) -> None:
    """Two suites on one machine, or a suite and a reader, must not fail each other. Other numbers stay as they are."""
    listen = 'import socket, sys\nsocket.create_server(("127.0.0.1", int(sys.argv[2])))'
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        typed = f"$ python listen.py --port {port}\n$ echo http://127.0.0.1:{port}/v3 {port}0 > shown"
        run_document(fenced(('python title="listen.py"', listen), ("console", typed)), tmp_path)
    address, number = (tmp_path / "shown").read_text().split()
    assert re.fullmatch(r"http://127.0.0.1:\d+/v3", address)
    assert (str(port) in address, number) == (False, f"{port}0")


@pytest.mark.timeout(10)
def test_background_processes_of_a_command_are_ended(tmp_path: Path) -> None:
    """A worker started in the background must not outlive the document that started it."""
    os.mkfifo(tmp_path / "held")
    reader = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    run_document(fenced(("console", "$ exec 3> held; sleep 600 &")), tmp_path)
    os.set_blocking(reader, True)
    # The read returns when the last process that holds the other end of the pipe has ended.
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_command_that_never_ends_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that waits forever must fail on its own and name the command."""
    monkeypatch.setattr(document, "COMMAND_SECONDS_MAX", 0.1)
    with pytest.raises(DocumentError, match=r"sleep 600\nexit code -1"):
        run_document(fenced(("console", "$ sleep 600")), tmp_path)


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """URLs and code that looks like a link must not be reported, or authors would ignore the report."""
    (tmp_path / "there.md").write_text("## The `first` part, of two\n")
    page = """
## Here

[a](there.md#the-first-part-of-two) [b](https://x.test/) [c](#here) `[d](code.md)`
[e](gone.md) ![f](gone.png) [g][g] [h](there.md#no-part) [i](#nowhere)

[g]: lost.md
"""
    assert broken_links(page, tmp_path) == ["gone.md", "gone.png", "lost.md", "there.md#no-part", "#nowhere"]
