"""leaseway tenants"""

import asyncio

import pytest
from tests.cli.place import Place

from leaseway.cli.load_app import load_app


@pytest.fixture
def place(place: Place) -> Place:
    place.ok("migrate")
    return place


def test_without_an_agreement_the_list_says_what_holds_for_all(place: Place) -> None:
    """An empty list alone does not say which weight a tenant has."""
    answer = place.ok("tenants")
    assert (answer.out, place.json("tenants")) == ("", {"tenants": []})
    assert "each has weight 1, no caps and the default quotas" in answer.err


def test_what_is_agreed_is_told_and_what_is_not_named_stays(place: Place) -> None:
    """Changing a weight must not remove the caps."""
    said = place.ok("tenants", "set", "acme", "--starts", "100/minute", "--starts", "3/second").out
    assert said == "tenant acme: weight 1, starts 3/second and 100/minute (was weight 1, no caps)\n"
    place.ok("tenants", "set", "acme", "--concurrency", "5")
    told = place.json("tenants", "set", "acme", "--weight", "3")
    wanted = {"name": "acme", "weight": 3, "starts": ["3/second", "100/minute"], "concurrency": 5, "quotas": {}}
    assert told == {"before": {**wanted, "weight": 1}, "after": wanted}
    assert place.json("tenants") == {"tenants": [wanted]}
    assert place.ok("tenants", "list").out.splitlines()[1].split() == ["acme", "3", "3/second,", "100/minute", "5"]
    assert place.ok("tenants", "set", "acme", "--weight", "3").out.endswith("as before\n")
    place.ok("tenants", "set", "acme", "--starts", "none", "--concurrency", "none")
    assert place.json("tenants")["tenants"] == [{**wanted, "starts": [], "concurrency": None}]


def test_caps_reach_the_limiter_and_a_weight_alone_does_not(place: Place) -> None:
    """Workers read the caps from the limiter as soon as the store says that a tenant has caps."""
    place.ok("tenants", "set", "acme", "--weight", "3")
    assert not (place.folder / "work.db-limits").exists()
    place.ok("tenants", "set", "acme", "--starts", "100/minute", "--concurrency", "5")
    (cap,) = place.json("limits")["limits"]
    assert (cap["name"], cap["concurrency"]) == ("tenant:acme", 5)
    assert cap["rates"] == [{"count": 100, "window_seconds": 60.0}]


def test_the_app_and_the_command_line_agree(place: Place) -> None:
    """The command line and the API write the same two places in the same order."""

    async def agree() -> None:
        async with load_app("tasks:app") as app:
            await app.set_tenant("acme", weight=2, starts="100/minute", concurrency=4)

    asyncio.run(agree())
    before = place.json("tenants"), place.json("limits")["limits"][0]["rates"]
    place.ok("tenants", "set", "acme", "--weight", "2", "--starts", "100/minute", "--concurrency", "4")
    assert (place.json("tenants"), place.json("limits")["limits"][0]["rates"]) == before


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "tenant acme: nothing to change"),
        (["--weight", "0"], "tenant acme: weight: must be between 1 and 1,000"),
        (["--starts", "often"], "tenant acme: starts: cannot read the rate 'often'"),
        (["--concurrency", "0"], "concurrency: must be between 1"),
        (["--concurrency", "few"], "'few' is not a whole number"),
        (
            ["--quota", "disk=5"],
            "quota: must be NAME=N with one of the names lanes, unfinished, bytes, keys (is 'disk=5')",
        ),
        (["--quota", "lanes"], "quota: must be NAME=N"),
        (["--quota", "lanes=5GiB"], "quota.lanes: must be a number such as 500, none or default (is '5gib')"),
        (["--quota", "bytes=-1"], "quota.bytes: must be a number such as 10GiB, none or default (is '-1')"),
    ],
)
def test_what_cannot_be_agreed_is_refused_by_name(place: Place, argv: list[str], complaint: str) -> None:
    """An error that does not name the option leaves the user guessing."""
    answer = place.run("tenants", "set", "acme", *argv)
    assert answer.code == 2
    assert complaint in answer.err
    assert place.json("tenants") == {"tenants": []}


def test_a_forgotten_tenant_is_like_one_that_nobody_has_set(place: Place) -> None:
    """Caps that stay in force after they were removed would block the tenant without a visible reason."""
    place.ok("tenants", "set", "acme", "--concurrency", "5")
    answer = place.run("tenants", "forget", "other")
    assert answer.code == 2
    assert "tenant 'other' has no settings; tenants with settings: acme" in answer.err
    assert place.ok("tenants", "forget", "acme").out.endswith("weight 1, no caps and the default quotas\n")
    assert place.json("tenants") == {"tenants": []}


def test_quotas_are_set_shown_and_kept(place: Place) -> None:
    """An operator must see what a tenant uses before raising a quota. Changing one setting must keep the others."""
    said = place.ok("tenants", "set", "acme", "--quota", "bytes=2GiB", "--quota", "lanes=none", "--quota", "keys=5").out
    assert said == (
        "tenant acme: weight 1, no caps, quotas lanes none, bytes 2.0 GiB, keys 5 (was weight 1, no caps)\n"
    )
    place.ok("tenants", "set", "acme", "--weight", "3", "--quota", "keys=default")
    assert place.json("tenants")["tenants"][0]["quotas"] == {"lanes": None, "bytes": 2 << 30}
    place.ok("keys", "create", "--tenant", "acme")
    shown = {each["quota"]: (each["used"], each["limit"]) for each in place.json("tenants", "show", "acme")["quotas"]}
    assert shown == {"lanes": (0, None), "unfinished": (0, 100_000), "bytes": (0, 2 << 30), "keys": (1, 100)}
    lines = [line.split() for line in place.ok("tenants", "show", "acme").out.splitlines()]
    assert lines[1:] == [
        ["lanes", "0", "none"],
        ["unfinished", "0", "default", "(100,000)"],
        ["bytes", "0", "bytes", "2.0", "GiB"],
        ["keys", "1", "default", "(100)"],
    ]


def test_an_app_that_sets_a_weight_keeps_the_quotas(place: Place) -> None:
    """An app does this whenever it starts; the quotas are the operator's."""

    async def agree() -> None:
        async with load_app("tasks:app") as app:
            await app.set_tenant("acme", weight=2)

    place.ok("tenants", "set", "acme", "--quota", "lanes=7")
    asyncio.run(agree())
    (tenant,) = place.json("tenants")["tenants"]
    assert (tenant["weight"], tenant["quotas"]) == (2, {"lanes": 7})
