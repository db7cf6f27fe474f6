"""leaseway doctor"""

import asyncio
from collections import Counter

import click

from leaseway.cli.open_store import refuse_memory, store_url
from leaseway.cli.options import CliSettings, pass_settings, with_store
from leaseway.cli.output.console import LEVEL_STYLES, Styled, print_json, say, wrapped
from leaseway.domain.health import Finding, FindingLevel
from leaseway.domain.redact import redact_url
from leaseway.ports.store import require_inspection
from leaseway.wiring import store_at


@click.command("doctor")
@click.option("--deep", is_flag=True, help="Also run slow checks that read all data.")
@with_store
@pass_settings
def command(settings: CliSettings, deep: bool) -> int:
    """Check a store for problems, and say what to do about each.

    Changes nothing. Exits with 1 if there is a problem; warnings alone do not count.
    """
    return doctor(settings, deep)


SICK = 1


def doctor(settings: CliSettings, deep: bool) -> int:
    url = store_url(settings)
    findings = asyncio.run(examine(url, deep))
    counts = Counter(finding.level for finding in findings)
    if settings.json:
        print_json(
            {
                "store": redact_url(url),
                **counts_json(counts),
                "findings": [finding_json(finding) for finding in findings],
            }
        )
    else:
        show(redact_url(url), findings, counts)
    return SICK if counts[FindingLevel.PROBLEM] else 0


async def examine(url: str, deep: bool) -> list[Finding]:
    refuse_memory(url)
    store = store_at(url)
    try:
        return await require_inspection(store).health(deep=deep)
    finally:
        await store.close()


def show(url: str, findings: list[Finding], counts: Counter[FindingLevel]) -> None:
    say(url, "bold")
    level_width = max(len(level) for level in FindingLevel)
    check_width = max(len(finding.check) for finding in findings)
    indent = level_width + check_width + 6
    for finding in findings:
        level = Styled(finding.level.ljust(level_width), LEVEL_STYLES[finding.level])
        say(["  ", level, f"  {finding.check.ljust(check_width)}  ", wrapped(finding.text, indent)])
        if finding.advice:
            say([" " * indent, Styled(wrapped(finding.advice, indent), "dim")])
    say(
        verdict(counts),
        "red" if counts[FindingLevel.PROBLEM] else "yellow" if counts[FindingLevel.WARNING] else "green",
    )


def verdict(counts: Counter[FindingLevel]) -> str:
    named = [
        f"{counts[level]} {level.value}{'s' if counts[level] > 1 else ''}"
        for level in (FindingLevel.PROBLEM, FindingLevel.WARNING)
        if counts[level]
    ]
    return " and ".join(named) if named else "no problems found"


def finding_json(finding: Finding) -> dict[str, str | None]:
    return {
        "check": finding.check,
        "level": finding.level.value,
        "text": finding.text,
        "advice": finding.advice,
    }


def counts_json(counts: Counter[FindingLevel]) -> dict[str, int]:
    return {"problems": counts[FindingLevel.PROBLEM], "warnings": counts[FindingLevel.WARNING]}
