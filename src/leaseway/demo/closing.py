"""The end of the demo, for people and for programs."""

from rich.table import Table
from rich.text import Text

from leaseway.demo.judge import named
from leaseway.demo.show import Shown


def as_dict(shown: Shown) -> dict[str, object]:
    verdict, kill = shown.verdict, shown.kill
    return {
        "ok": verdict.is_clean,
        "submitted": verdict.submitted,
        "done": verdict.done,
        "lost": len(verdict.lost),
        "doubled": len(verdict.doubled),
        "requests": verdict.requests,
        "requests_repeated": verdict.requests_repeated,
        "attempts_repeated": verdict.attempts_repeated,
        "leases_taken_back": verdict.leases_taken_back,
        "killed": None if kill is None else kill._asdict(),
        "seconds": round(shown.seconds, 3),
        "jobs_per_second": round(shown.jobs_per_second, 1),
    }


def as_table(shown: Shown) -> Table:
    verdict, kill = shown.verdict, shown.kill
    table = Table(title="counted again, from the store's rows and the provider's journal", title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_column("")
    table.show_header = False
    table.add_row("jobs submitted", f"{verdict.submitted:,}")
    table.add_row("jobs done", f"{verdict.done:,}")
    table.add_row("lost", *judged(verdict.lost))
    table.add_row("doubled effects", *judged(verdict.doubled), end_section=True)
    table.add_row("jobs in the hands of the killed worker", "none" if kill is None else f"{kill.in_hands:,}")
    table.add_row("leases taken back", f"{verdict.leases_taken_back:,}")
    table.add_row("attempts repeated because of it", f"{verdict.attempts_repeated:,}", end_section=True)
    table.add_row("requests that the provider saw", f"{verdict.requests:,}")
    table.add_row("repeated ones, recognised by their key", f"{verdict.requests_repeated:,}", end_section=True)
    table.add_row("throughput", f"{shown.jobs_per_second:,.0f} jobs/s", f"{shown.seconds:.1f} s")
    return table


def judged(orders: tuple[int, ...]) -> tuple[Text, Text]:
    if not orders:
        return Text("0", "bold green"), Text("as promised", "green")
    return Text(f"{len(orders):,}", "bold red"), Text(f"orders {named(orders)}", "red")
