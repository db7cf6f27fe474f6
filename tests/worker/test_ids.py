"""Ids that the system makes: unique, growing, and not to be guessed."""

import os
import random
import time
from itertools import pairwise

import pytest

from leaseway.domain.ids import ALPHABET, id_instant
from leaseway.system import SystemChance, SystemIds


def test_an_id_says_nothing_about_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant receives ids of its own jobs. If others followed from them, it could submit under the ids that the
    same process gives to another tenant's next jobs.
    """
    ids, now = SystemIds(), [1_800_000_000_000_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    within = [decode(ids.job()[10:]) for _ in range(2_000)]
    steps = [after - before for before, after in pairwise(within)]
    assert len(set(steps)) > 1_990
    assert max(steps) > 1 << 23
    firsts = set()
    for _ in range(2_000):
        now[0] += 1_000_000
        firsts.add(ids.job()[10:14])
    assert len(firsts) > 1_990, "the random part of an id must be new in every millisecond"


def decode(text: str) -> int:
    number = 0
    for letter in text:
        number = number * 32 + ALPHABET.index(letter)
    return number


def test_ids_grow_though_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are listed by id; a correction of the clock must not show a job before those that were submitted first."""
    ids, now = SystemIds(), [1_800_000_000_000_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    made = []
    for step in (0, 0, 1_000_000, -5_000_000, 0, 7_000_000):
        now[0] += step
        made += [ids.job() for _ in range(1_000)]
    assert made == sorted(set(made))


def test_more_ids_than_fit_into_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter must not wrap: an id that was made before would count as a repeated submission."""
    ids, now = SystemIds(), 1_800_000_000_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now)
    made = [ids.job() for _ in range(300_000)]
    assert len(set(made)) == len(made)
    assert made == sorted(made)
    assert made[-1][:10] > made[0][:10]


def test_an_id_tells_when_it_was_made() -> None:
    """The service compares it with its clock, and imports order the jobs of a shard by it."""
    before = time.time_ns() // 1_000_000 * 1_000
    instant = id_instant(SystemIds().job())
    assert instant is not None
    assert before <= instant <= time.time_ns() // 1_000
    assert [id_instant(text) for text in ("", "0" * 25, "0" * 27, "U" * 26, "i" * 26, "é" * 26)] == [None] * 6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_makes_other_ids() -> None:
    """Both processes would otherwise submit different jobs under the same ids, and half of them would be lost."""
    ids = SystemIds()
    ids.job()
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writing, "".join(ids.job() for _ in range(100)).encode())
        os._exit(0)
    os.close(writing)
    own = {ids.job() for _ in range(100)}
    os.waitpid(pid, 0)
    text = os.read(reading, 10_000).decode()
    os.close(reading)
    assert len(text) == 2_600
    assert not own & {text[start : start + 26] for start in range(0, len(text), 26)}


def test_a_handler_that_seeds_the_shared_generator_leaves_the_jitter_random() -> None:
    """Machine learning code seeds it with a constant, and then all workers would retry in the same moment."""
    state, chance = random.getstate(), SystemChance()
    drawn = []
    for _ in range(2):
        random.seed(7)
        drawn.append([chance.random() for _ in range(5)])
    random.setstate(state)
    assert drawn[0] != drawn[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_draws_jitter_of_its_own() -> None:
    """Workers that share a state after a fork would all retry in the same moment."""
    chance = SystemChance()
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writing, repr(chance.random()).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    drawn = float(os.read(reading, 100))
    os.close(reading)
    assert drawn != chance.random()
