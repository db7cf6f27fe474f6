"""Which client submits what, and when: the load of the jobs scenario, drawn from its seed."""

from collections.abc import Sequence
from random import Random
from typing import Any

from tests.simulation.campaign.scenario_jobs import bound

from leaseway.simulation.clients import Intent
from leaseway.simulation.swarm import FAULTY_SECONDS, LEASE_SECONDS, Swarm

SUBMIT_SECONDS = FAULTY_SECONDS * 0.8
QUEUES = ("default", "mail")
TENANTS = ("default", "acme")
QUICK_SECONDS = (0.0, 0.1, 0.5, LEASE_SECONDS, 2.5 * LEASE_SECONDS)
QUICK_SECONDS_ALONE = (0.1, 2.5 * LEASE_SECONDS, 3.5 * LEASE_SECONDS)
"""A single worker that is away for longer than a lease is granted jobs that it still runs."""


def draw_plan(chance: Random, swarm: Swarm) -> list[Intent]:
    plan: list[Intent] = []
    for number in range(swarm.submissions):
        plan += intents(number, chance, swarm)
    return plan


def intents(number: int, chance: Random, swarm: Swarm) -> list[Intent]:
    intent = Intent(chance.uniform(0, SUBMIT_SECONDS), chance.randrange(swarm.clients))
    if chance.random() < 0.2:
        return keyed(intent, number, chance, swarm)
    is_favourite = swarm.favourite and chance.random() < FAVOURITE_SHARE
    kind = swarm.favourite if is_favourite else chance.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))[0]
    arguments = draw_arguments(kind, chance, QUICK_SECONDS_ALONE if swarm.workers == 1 else QUICK_SECONDS)
    count = chance.choice((1, 1, 1, 3)) if kind in ("quick", "shaky") else 1
    for each in range(count):
        intent.jobs.append(bound(kind, arguments, **draw_options(chance)))
        intent.labels.append(f"submission {number}.{each}")
    if chance.random() < CANCELLED_ANYWAY.get(kind, swarm.cancel):
        intent.cancel_after = chance.choice((0.0, 0.3, 1.0, 4.0)) * chance.random()
    return [intent]


def keyed(intent: Intent, number: int, chance: Random, swarm: Swarm) -> list[Intent]:
    """The same job from several clients under one key; sometimes another job uses the same key."""
    options = {"key": f"key-{number}", "tenant": chance.choice(TENANTS)}
    plan = []
    for _ in range(chance.randint(2, 3)):
        arguments = {"seconds": 0.3 if chance.random() < 0.8 else 0.4}
        label = f"key {options['tenant']} {options['key']} {arguments['seconds']}"
        at = intent.at + chance.uniform(0, 1)
        job = bound("quick", arguments, **options)
        plan.append(Intent(at, chance.randrange(swarm.clients), [job], [label]))
    return plan


def draw_options(chance: Random) -> dict[str, Any]:
    options: dict[str, Any] = {"tenant": chance.choice(TENANTS), "queue": chance.choice(QUEUES)}
    if chance.random() < 0.2:
        options["priority"] = chance.randint(-5, 5)
    if chance.random() < 0.2:
        options["delay"] = chance.uniform(0.1, 3)
    return options


CANCELLED_ANYWAY = {"endless": 1.0, "tidy": 0.7}
"""Kinds that test how jobs stop."""

FAVOURITE_SHARE = 0.5
WEIGHTS = {
    "quick": 6,
    "tidy": 3,
    "steps": 4,
    "shaky": 2,
    "hopeless": 2,
    "sleepy": 2,
    "parent": 3,
    "poison": 1,
    "endless": 1,
}


def draw_arguments(kind: str, chance: Random, quick_seconds: Sequence[float]) -> dict[str, Any]:
    match kind:
        case "quick":
            return {"seconds": chance.choice(quick_seconds)}
        case "tidy":
            return {"seconds": chance.uniform(2, 5), "tidy_seconds": chance.choice((0.3, 1.5, 4.0))}
        case "steps":
            return {"count": chance.randint(3, 8), "seconds": chance.uniform(0.1, 0.6)}
        case "shaky":
            return {"failures": chance.randint(1, 3)}
        case "hopeless":
            return {"at_once": chance.random() < 0.5}
        case "sleepy":
            return {"times": chance.randint(1, 6), "seconds": chance.choice((0.0, 0.0, 0.3))}
        case "parent":
            return {"children": chance.randint(1, 2), "seconds": chance.choice((0.1, 1.0, 3.0))}
    return {}
