"""A judge that cannot condemn proves nothing."""

import io
import sqlite3
from pathlib import Path

from rich.console import Console

from leaseway.demo.closing import as_dict, as_table
from leaseway.demo.judge import Row, Verdict, judge, judge_files
from leaseway.demo.provider import Ledger
from leaseway.demo.show import Kill, Shown
from leaseway.stores.sqlite.migrate import migrate

CLEAN = [Row(0, True, 1), Row(1, True, 1), Row(2, True, 2)]
JOURNAL = ["0 charged a", "1 charged b", "2 charged c", "2 repeated c"]


def judged(rows: list[Row] = CLEAN, journal: list[str] = JOURNAL) -> Verdict:
    return judge(3, rows, journal, leases_taken_back=1)


def test_a_repeated_call_with_the_same_key_is_no_doubled_effect() -> None:
    """This is what the kill leaves behind, and what the key is for."""
    verdict = judged()
    assert verdict.is_clean
    assert (verdict.done, verdict.requests, verdict.requests_repeated, verdict.attempts_repeated) == (3, 4, 1, 1)


def test_an_order_that_was_charged_twice_is_doubled() -> None:
    """Two keys for one order: the provider could not know, but its customer will."""
    verdict = judged(journal=[*JOURNAL, "1 charged other"])
    assert verdict.doubled == (1,)
    assert not verdict.is_clean


def test_an_order_that_was_never_charged_is_lost_though_its_job_is_done() -> None:
    """Otherwise a worker that settles without calling would pass."""
    assert judged(journal=JOURNAL[1:]).lost == (0,)


def test_an_order_whose_job_is_not_done_is_lost_though_it_was_charged() -> None:
    """Nobody knows of the charge."""
    assert judged(rows=[CLEAN[0], Row(1, False, 1), CLEAN[2]]).lost == (1,)


def test_an_order_whose_job_vanished_is_lost() -> None:
    """Counting only what the store has would not notice."""
    assert judged(rows=CLEAN[:2]).lost == (2,)


def test_two_done_jobs_for_one_order_are_doubled() -> None:
    """A submission that was stored twice under two ids."""
    assert judged(rows=[*CLEAN, Row(0, True, 1)]).doubled == (0,)


def test_the_judge_reads_the_rows_and_not_the_counters(tmp_path: Path) -> None:
    """leaseway's own counters are what is on trial."""
    with sqlite3.connect(tmp_path / "demo.db") as connection:
        migrate(connection, "demo.db")
        connection.execute("INSERT INTO lanes (id, queue, tenant, done) VALUES (1, 'default', 'default', 2)")
        job = "INSERT INTO jobs (id, lane, stage, kind, priority, run_at, attempts_max, lease_us, created_at, payload)"
        for order, stage in ((0, 3), (1, 0)):
            values = (str(order), stage, f'{{"order": {order}}}')
            connection.execute(f"{job} VALUES (?, 1, ?, 'charge', 0, 0, 5, 1, 0, ?)", values)
    connection.close()
    (tmp_path / "journal.txt").write_text("0 charged a\n1 charged b\n")
    verdict = judge_files(2, tmp_path / "demo.db", tmp_path / "journal.txt")
    assert (verdict.done, verdict.lost, verdict.doubled) == (1, (1,), ())


def test_the_provider_charges_a_key_once_and_says_so_in_its_journal() -> None:
    """The journal is the judge's only witness."""
    journal = io.StringIO()
    ledger = Ledger(journal)
    assert [ledger.charge("7", "key", "1"), ledger.charge("7", "key", "2"), ledger.charge("7", "new", "2")] == [
        True,
        False,
        True,
    ]
    assert journal.getvalue().splitlines() == ["7 charged key", "7 repeated key", "7 charged new"]
    assert ledger.seen() == {"requests": {"1": 1, "2": 2}, "charged": 2, "repeated": 1}


def test_a_guilty_verdict_is_told_and_names_the_orders() -> None:
    """A table that only knows good news would hide a defect."""
    shown = Shown(judged(journal=[*JOURNAL[1:], "1 charged other"]), Kill(2, 4242, 9), seconds=1.0)
    assert as_dict(shown)["ok"] is False
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(as_table(shown))
    text = console.export_text()
    assert "orders 0" in text
    assert "orders 1" in text
