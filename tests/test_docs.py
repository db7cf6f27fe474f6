"""The documentation runs: each document is executed block by block, in a working directory of its own.

The language of a fenced block decides what happens to it, the words after the language adjust that:

    python                            run as a script; must exit 0
    python title="tasks.py"           written to that file for the blocks that follow, and compiled
    python raises                     run; must exit with an error
    console                           each "$ " line is run in a shell, the lines below it are what it prints;
                                      "..." stands for any text, no lines at all for any output
    console exit=2                    the last command of the block exits with 2
    sh                                run as one script; must exit 0
    toml, json                        parsed; with title="..." written to that file as well
    … no-run reason="needs a server"  python, console and sh: only checked for syntax

What a document leaves running has a session and a file with its id, and is ended by that id, never by name.
An `export` in a console block holds for the rest of the document. `./dev` commands are not run but
looked up in `./dev help`. Blocks in any other language are left alone. A document that speaks of `DATABASE_URL` finds a
PostgreSQL server there, as its reader does.
"""

import doctest
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from leaseway.testing.postgres import postgres_server

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted(ROOT.glob("docs/**/*.md"))]
DOCUMENTS = [str(page.relative_to(ROOT)) for page in PAGES if page.exists()]
COMMAND_SECONDS_MAX = 60
WORDS = {
    "python": {"title", "raises", "no-run", "reason"},
    "console": {"exit", "no-run", "reason"},
    "sh": {"no-run", "reason"},
    "toml": {"title"},
    "json": {"title"},
}


class DocumentError(AssertionError):
    """A block does not do what its document says."""


@dataclass(frozen=True)
class Block:
    language: str
    words: dict[str, str]
    text: str
    line: int

    def expect(self, truth: bool, complaint: str) -> None:
        if not truth:
            raise DocumentError(f"line {self.line} ({self.language}): {complaint}")


@dataclass(frozen=True)
class Command:
    script: str
    output: str


@dataclass
class Workplace:
    """Where one document runs: its directory, and what it exported so far."""

    directory: Path
    exports: list[str] = field(default_factory=list)

    def run(self, command: list[str], **variables: str) -> tuple[int, str]:
        """Exit code and output. Whatever the command left running is ended with it."""
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env=environment() | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(COMMAND_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                code = -1
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            text = output.read().decode(errors="replace")
        return code, text if code != -1 else f"{text}\n(ended after {COMMAND_SECONDS_MAX} seconds)"

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def environment() -> dict[str, str]:
    """A reader's fresh terminal: no setting of ours, no colours, a known width, `leaseway` on the path."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("LEASEWAY_")}
    ours.pop("PYTHONPATH", None)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return ours | {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


def execute(document: str, directory: Path) -> int:
    """Run the blocks of one document in order; answer how many were run or checked."""
    place = Workplace(directory)
    steps = {
        "python": run_python,
        "console": run_console,
        "sh": run_sh,
        "toml": check_settings,
        "json": check_settings,
    }
    known = [block for block in blocks(document) if block.language in steps]
    for block in known:
        check_words(block)
        steps[block.language](block, place)
    return len(known)


def tokens(document: str) -> Iterator[Token]:
    for token in MarkdownIt().parse(document):
        yield token
        yield from token.children or []


def blocks(document: str) -> Iterator[Block]:
    for token in tokens(document):
        if token.type == "fence" and token.map:
            language, *words = shlex.split(token.info) or [""]
            pairs = (word.partition("=") for word in words)
            yield Block(language, {name: value for name, _, value in pairs}, token.content, token.map[0] + 1)


def check_words(block: Block) -> None:
    unknown = set(block.words) - WORDS[block.language]
    block.expect(not unknown, f"does not know {sorted(unknown)}")
    if "no-run" in block.words:
        block.expect(bool(block.words.get("reason")), 'no-run needs a reason="…"')
    if "title" in block.words:
        name = Path(block.words["title"])
        inside = name.name != "" and not name.is_absolute() and ".." not in name.parts
        block.expect(inside, "a title is the name of a file in the document's directory")
    if block.language in {"console", "sh"}:
        # Readers, and tests that run beside this one, have processes of the same name.
        by_name = re.search(r"\b(pkill|killall)\b", block.text)
        block.expect(by_name is None, "ends processes by their name; keep the id in a file and end that one")


def run_python(block: Block, place: Workplace) -> None:
    try:
        compile(block.text, block.words.get("title", f"line {block.line}"), "exec")
    except SyntaxError as error:
        raise DocumentError(f"line {block.line} (python): {error}") from error
    if "title" in block.words:
        place.write(block.words["title"], block.text)
    elif "no-run" not in block.words:
        run_script(block, place)


def run_script(block: Block, place: Workplace) -> None:
    script = place.directory / f"block_at_line_{block.line}.py"
    script.write_text(block.text)
    code, output = place.run([sys.executable, str(script)], PYTHONPATH=str(place.directory))
    script.unlink()
    if "raises" in block.words:
        block.expect(code != 0, f"was to raise, and did not:\n{output}")
    else:
        block.expect(code == 0, f"exit code {code}:\n{output}")


def run_console(block: Block, place: Workplace) -> None:
    typed = commands(block)
    for command in typed:
        expected_code = int(block.words.get("exit", 0)) if command is typed[-1] else 0
        if "no-run" in block.words:
            check_shell_syntax(block, command.script, place)
        elif command.script.startswith("./dev"):
            check_dev_commands(block, command.script)
        else:
            run_command(block, command, expected_code, place)


def commands(block: Block) -> list[Command]:
    """Split a console block into its "$ " lines, each with the lines that follow it."""
    first, *parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    block.expect(not first.strip() and bool(parts), "starts with a command, after a dollar and a space")
    split = (re.match(r"((?:.*\\\n)*.*)\n?([\s\S]*)", part) for part in parts)
    return [Command(match[1], match[2]) for match in split if match]


def run_command(block: Block, command: Command, expected_code: int, place: Workplace) -> None:
    code, output = place.run(["sh", "-c", "\n".join([*place.exports, command.script])])
    block.expect(code == expected_code, f"{command.script}\nexit code {code}, not {expected_code}:\n{output}")
    if command.output.strip():
        block.expect(
            matches(command.output, output),
            f"{command.script}\nthe document says:\n{command.output}\nthe command says:\n{output}",
        )
    if command.script.startswith("export "):
        place.exports.append(command.script)


def matches(expected: str, output: str) -> bool:
    """Whether a command printed what the document shows; "..." and white space are taken as in a doctest."""
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.DONT_ACCEPT_TRUE_FOR_1
    return doctest.OutputChecker().check_output(expected, output, options)


def run_sh(block: Block, place: Workplace) -> None:
    check_dev_commands(block, block.text)
    script = "".join(line for line in block.text.splitlines(keepends=True) if not line.startswith("./dev"))
    if "no-run" in block.words:
        check_shell_syntax(block, script, place)
    else:
        code, output = place.run(["sh", "-euc", "\n".join([*place.exports, script])])
        block.expect(code == 0, f"exit code {code}:\n{output}")


def check_shell_syntax(block: Block, script: str, place: Workplace) -> None:
    code, output = place.run(["sh", "-nc", script])
    block.expect(code == 0, f"is not a shell command:\n{output}")


def check_dev_commands(block: Block, script: str) -> None:
    for name in re.findall(r"^\./dev\b *(\S*)", script, re.MULTILINE):
        block.expect(name in dev_commands(), f"./dev help does not list '{name}'")


@cache
def dev_commands() -> frozenset[str]:
    text = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, check=True).stdout
    return frozenset(re.findall(r"^  \./dev (\w+)", text, re.MULTILINE))


def check_settings(block: Block, place: Workplace) -> None:
    parse = tomllib.loads if block.language == "toml" else json.loads
    try:
        parse(block.text)
    except ValueError as error:
        raise DocumentError(f"line {block.line} ({block.language}): {error}") from error
    if "title" in block.words:
        place.write(block.words["title"], block.text)


def broken_links(document: str, folder: Path) -> list[str]:
    """The relative links and images of a document that lead to no file."""
    targets = [token.attrGet("href") or token.attrGet("src") for token in tokens(document)]
    relative = [str(target) for target in targets if target and not re.match(r"[a-z][a-z+.-]*:|#|//", str(target))]
    return [target for target in relative if not (folder / target.partition("#")[0]).exists()]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_does_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that no longer works costs every reader an hour and us their trust."""
    text = (ROOT / name).read_text()
    with postgres_server() if "DATABASE_URL" in text else nullcontext() as server:
        if server is not None:
            monkeypatch.setenv("DATABASE_URL", server.url)
        execute(text, tmp_path)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_link_leads_to_a_file(name: str) -> None:
    """A page that moved must take the links to it along."""
    assert broken_links((ROOT / name).read_text(), (ROOT / name).parent) == []


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
    "what is left alone": [
        ("text", "$ false"),
        ("mermaid", "graph TD"),
        ("", "$ false"),
        ("sql", "nonsense"),
    ],
}

FAILING = {
    "a script that fails": ([("python", "assert False")], "AssertionError"),
    "a script that was to raise": ([("python raises", "pass")], "was to raise"),
    "python that does not compile": ([('python title="tasks.py"', "def")], "invalid syntax"),
    "python that is not run and does not compile": (
        [('python no-run reason="slow"', "def")],
        "invalid syntax",
    ),
    "no reason not to run": ([("python no-run", "pass")], "needs a reason"),
    "a misspelt word": ([("python norun", "pass")], "norun"),
    "a file outside": ([('python title="../tasks.py"', "pass")], "name of a file"),
    "a file of another document": ([("python", "import tasks")], "ModuleNotFoundError"),
    "a command that fails": ([("console", "$ false\n$ true")], "exit code 1, not 0"),
    "a command that fails after printing": ([("console", "$ echo a; false\na")], "exit code 1, not 0"),
    "a command that was to fail": ([("console exit=2", "$ true")], "exit code 0, not 2"),
    "other output": ([("console", "$ echo one\ntwo")], "the command says:\none"),
    "more output than shown": ([("console", "$ printf 'a\\nb\\n'\na")], "the command says:\na\nb"),
    "a console without a command": ([("console", "leaseway demo")], "starts with a command"),
    "a shell line that fails": ([("sh", "false\ntrue")], "exit code 1"),
    "a shell script with bad syntax": ([('sh no-run reason="slow"', "if true")], "not a shell command"),
    "an unknown ./dev command": ([("console", "$ ./dev tset")], "does not list 'tset'"),
    "an unknown ./dev command in a script": ([("sh", "./dev tset")], "does not list 'tset'"),
    "an end by name": ([("sh", "pkill -f nobody-is-called-so || true")], "keep the id in a file"),
    "an end by name at a prompt": ([("console", "$ killall nobody || true")], "keep the id in a file"),
    "bad toml": ([("toml", "a =")], "toml"),
    "bad json": ([("json", "{a}")], "json"),
}


@pytest.mark.parametrize("parts", WORKING.values(), ids=WORKING.keys())
def test_the_harness_accepts(parts: list[tuple[str, str]], tmp_path: Path) -> None:
    """The markup that writers are offered must work as the opening lines of this file say."""
    assert execute(fenced(*parts), tmp_path) == sum(info.split(" ")[0] in WORDS for info, _ in parts)


@pytest.mark.parametrize(("parts", "complaint"), FAILING.values(), ids=FAILING.keys())
def test_the_harness_refuses(parts: list[tuple[str, str]], complaint: str, tmp_path: Path) -> None:
    """A harness that lets a broken example pass is worse than none: the document looks proven."""
    with pytest.raises(DocumentError, match=re.escape(complaint)):
        execute(fenced(*parts), tmp_path)


def test_a_block_in_a_list_is_found_with_its_line(tmp_path: Path) -> None:
    """Writers indent blocks under list items, and an error must lead to the right place."""
    with pytest.raises(DocumentError, match="line 3 "):
        execute("1. First:\n\n   ```python\n   assert False\n   ```\n", tmp_path)


def test_settings_of_our_terminal_do_not_reach_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that works only with our store setting does not work for its readers."""
    monkeypatch.setenv("LEASEWAY_STORE", "memory://")
    execute(fenced(("console", '$ echo "[$LEASEWAY_STORE]"\n[]')), tmp_path)


@pytest.mark.timeout(10)
def test_what_a_command_leaves_running_is_ended(tmp_path: Path) -> None:
    """A worker started in the background must not outlive the document that started it."""
    os.mkfifo(tmp_path / "held")
    reader = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    execute(fenced(("console", "$ exec 3> held; sleep 600 &")), tmp_path)
    os.set_blocking(reader, True)
    # The pipe ends when nobody holds its other end any more; while somebody does, this read waits.
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_command_that_never_ends_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that waits for ever must fail by itself and name the command."""
    monkeypatch.setitem(globals(), "COMMAND_SECONDS_MAX", 0.1)
    with pytest.raises(DocumentError, match=r"sleep 600\nexit code -1"):
        execute(fenced(("console", "$ sleep 600")), tmp_path)


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """Only what leads nowhere is named: no addresses, no anchors, no code that looks like a link."""
    (tmp_path / "there.md").touch()
    page = """
[a](there.md#part) [b](https://x.test/) [c](#here) `[d](code.md)`
[e](gone.md) ![f](gone.png) [g][g]

[g]: lost.md
"""
    assert broken_links(page, tmp_path) == ["gone.md", "gone.png", "lost.md"]
