"""Runs the documentation: each document is executed block by block, in a working directory of its own.

The language of a fenced block decides what happens to it; the words after the language adjust that:

    python                            run as a script; must exit 0
    python title="tasks.py"           written to that file for the blocks that follow, and compiled
    python raises                     run; must exit with an error
    console                           each "$ " line is run in a shell, the lines below it are the expected output;
                                      "..." stands for any text, no lines at all for any output
    console exit=2                    the last command of the block exits with 2
    sh                                run as one script; must exit 0
    toml, json                        parsed; with title="..." written to that file as well
    … no-run reason="needs a server"  python, console and sh: only checked for syntax

Blocks in any other language are ignored. An `export` in a console block holds for the rest of the document. `./dev`
commands are not run but looked up in `./dev help`. `curl` is the small client in curl.py, so no curl has to be
installed. A document that mentions `DATABASE_URL` gets a PostgreSQL server, and one with `MONGODB_URL` a MongoDB
server. A port after `--port` is replaced by a free
one in the whole document, so that two suites can run on one machine. A process that a document leaves running writes
its id to a file, and the document ends it by that id, never by name.
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
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from tests.docs import curl

from leaseway.testing.server import free_port

ROOT = Path(__file__).resolve().parents[2]
COMMAND_SECONDS_MAX = 60
OPTIONS = {
    "python": {"title", "raises", "no-run", "reason"},
    "console": {"exit", "no-run", "reason"},
    "sh": {"no-run", "reason"},
    "toml": {"title"},
    "json": {"title"},
}
"""Language → the words that may follow it."""


class DocumentError(AssertionError):
    """A block does not do what its document says."""


@dataclass(frozen=True)
class Block:
    language: str
    options: dict[str, str]
    text: str
    line: int

    def require(self, condition: bool, complaint: str) -> None:
        if not condition:
            raise DocumentError(f"line {self.line} ({self.language}): {complaint}")


@dataclass(frozen=True)
class Command:
    script: str
    output: str


@dataclass
class Terminal:
    """Where one document runs: its directory, its programs and the variables that it exported so far."""

    directory: Path
    exports: list[str] = field(default_factory=list)

    def run(self, command: list[str], **variables: str) -> tuple[int, str]:
        """Exit code and output. Processes that the command left running are killed."""
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env=reader_environment() | variables,
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
        return code, text if code != -1 else f"{text}\n(killed after {COMMAND_SECONDS_MAX} seconds)"

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def reader_environment() -> dict[str, str]:
    """A reader's new terminal: no settings of the suite, no colours, a known width, `leaseway` and `curl` on PATH."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LEASEWAY_")}
    kept.pop("PYTHONPATH", None)
    folders = [str(programs()), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return kept | {"PATH": os.pathsep.join(folders), "COLUMNS": "100", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


@cache
def programs() -> Path:
    """A folder with the `curl` of the documents; it is removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="leaseway-documents-")
    _folders.append(folder)
    program = Path(folder.name, "curl")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{curl.__file__}" "$@"\n')
    program.chmod(0o755)
    return program.parent


_folders: list[tempfile.TemporaryDirectory[str]] = []
"""Keeps the folder of `programs` until the process ends."""


def run_document(document: str, directory: Path) -> int:
    """Run the blocks of one document in order; return how many were run or checked."""
    terminal, document = Terminal(directory), with_free_ports(document)
    steps = {
        "python": run_python,
        "console": run_console,
        "sh": run_sh,
        "toml": check_settings,
        "json": check_settings,
    }
    known = [block for block in blocks(document) if block.language in steps]
    for block in known:
        check_options(block)
        steps[block.language](block, terminal)
    return len(known)


def with_free_ports(document: str) -> str:
    """The document with another number for each port that its commands listen on."""
    for port in sorted(set(re.findall(r"--port (\d{4,5})\b", document))):
        document = re.sub(rf"(?<![\w.]){port}(?![\w.])", str(free_port()), document)
    return document


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


def check_options(block: Block) -> None:
    unknown = set(block.options) - OPTIONS[block.language]
    block.require(not unknown, f"unknown options {sorted(unknown)}")
    if "no-run" in block.options:
        block.require(bool(block.options.get("reason")), 'no-run needs a reason="…"')
    if "title" in block.options:
        name = Path(block.options["title"])
        inside = name.name != "" and not name.is_absolute() and ".." not in name.parts
        block.require(inside, "a title must be the name of a file in the document's directory")
    if block.language in {"console", "sh"}:
        # Readers, and tests that run at the same time, have processes with the same name.
        by_name = re.search(r"\b(pkill|killall)\b", block.text)
        block.require(by_name is None, "ends processes by name; keep the process id in a file and use it")


def run_python(block: Block, terminal: Terminal) -> None:
    try:
        compile(block.text, block.options.get("title", f"line {block.line}"), "exec")
    except SyntaxError as error:
        raise DocumentError(f"line {block.line} (python): {error}") from error
    if "title" in block.options:
        terminal.write(block.options["title"], block.text)
    elif "no-run" not in block.options:
        run_script(block, terminal)


def run_script(block: Block, terminal: Terminal) -> None:
    script = terminal.directory / f"block_at_line_{block.line}.py"
    script.write_text(block.text)
    code, output = terminal.run([sys.executable, str(script)], PYTHONPATH=str(terminal.directory))
    script.unlink()
    if "raises" in block.options:
        block.require(code != 0, f"should raise an exception but did not:\n{output}")
    else:
        block.require(code == 0, f"exit code {code}:\n{output}")


def run_console(block: Block, terminal: Terminal) -> None:
    typed = commands(block)
    for command in typed:
        expected_code = int(block.options.get("exit", 0)) if command is typed[-1] else 0
        if "no-run" in block.options:
            check_shell_syntax(block, command.script, terminal)
        elif command.script.startswith("./dev"):
            check_dev_commands(block, command.script)
        else:
            run_command(block, command, expected_code, terminal)


def commands(block: Block) -> list[Command]:
    """Split a console block into its "$ " lines, each with the lines that follow it."""
    first, *parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    block.require(not first.strip() and bool(parts), "must start with a command, after a dollar and a space")
    split = (re.match(r"((?:.*\\\n)*.*)\n?([\s\S]*)", part) for part in parts)
    return [Command(match[1], match[2]) for match in split if match]


def run_command(block: Block, command: Command, expected_code: int, terminal: Terminal) -> None:
    code, output = terminal.run(["sh", "-c", "\n".join([*terminal.exports, command.script])])
    block.require(code == expected_code, f"{command.script}\nexit code {code}, expected {expected_code}:\n{output}")
    if command.output.strip():
        block.require(
            matches(command.output, output),
            f"{command.script}\nexpected output:\n{command.output}\nactual output:\n{output}",
        )
    if command.script.startswith("export "):
        terminal.exports.append(command.script)


def matches(expected: str, output: str) -> bool:
    """Whether a command printed what the document shows; "..." and white space are treated as in a doctest."""
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.DONT_ACCEPT_TRUE_FOR_1
    return doctest.OutputChecker().check_output(expected, output, options)


def run_sh(block: Block, terminal: Terminal) -> None:
    check_dev_commands(block, block.text)
    script = "".join(line for line in block.text.splitlines(keepends=True) if not line.startswith("./dev"))
    if "no-run" in block.options:
        check_shell_syntax(block, script, terminal)
    else:
        code, output = terminal.run(["sh", "-euc", "\n".join([*terminal.exports, script])])
        block.require(code == 0, f"exit code {code}:\n{output}")


def check_shell_syntax(block: Block, script: str, terminal: Terminal) -> None:
    code, output = terminal.run(["sh", "-nc", script])
    block.require(code == 0, f"is not a valid shell command:\n{output}")


def check_dev_commands(block: Block, script: str) -> None:
    for name in re.findall(r"^\./dev\b *(\S*)", script, re.MULTILINE):
        block.require(name in dev_commands(), f"./dev help does not list '{name}'")


@cache
def dev_commands() -> frozenset[str]:
    text = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, timeout=30, check=True).stdout
    return frozenset(re.findall(r"^  \./dev (\w+)", text, re.MULTILINE))


def check_settings(block: Block, terminal: Terminal) -> None:
    parse = tomllib.loads if block.language == "toml" else json.loads
    try:
        parse(block.text)
    except ValueError as error:
        raise DocumentError(f"line {block.line} ({block.language}): {error}") from error
    if "title" in block.options:
        terminal.write(block.options["title"], block.text)


def broken_links(document: str, folder: Path) -> list[str]:
    """The relative links and images of a document whose file or heading does not exist."""
    targets = [str(token.attrGet("href") or token.attrGet("src") or "") for token in tokens(document)]
    relative = [target for target in targets if target and not re.match(r"[a-z][a-z+.-]*:|//", target)]
    return [target for target in relative if not leads_somewhere(target, document, folder)]


def leads_somewhere(target: str, document: str, folder: Path) -> bool:
    name, _, anchor = target.partition("#")
    page = folder / name
    if not name:
        return anchor in anchors(document)
    return page.exists() and (not anchor or page.suffix != ".md" or anchor in anchors(page.read_text()))


@cache
def anchors(document: str) -> frozenset[str]:
    """The anchors that GitHub gives the headings of a document. Repeated headings are not numbered here."""
    found = list(tokens(document))
    headings = [text.content for heading, text in pairwise(found) if heading.type == "heading_open"]
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)
