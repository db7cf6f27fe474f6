"""leaseway keys"""

import pytest
from tests.cli.place import Place

from leaseway.domain.identity import parse_key_text


@pytest.fixture
def place(place: Place) -> Place:
    place.ok("migrate")
    return place


def test_without_keys_the_list_says_how_to_make_one(place: Place) -> None:
    """An empty list alone does not tell a new user what to do next."""
    answer = place.ok("keys")
    assert (answer.out, place.json("keys")) == ("", {"keys": []})
    assert "leaseway keys create" in answer.err


def test_a_first_key_begins_the_store(place: Place) -> None:
    """A first user of the service creates a key before any job, when no store exists yet."""
    store = ("--store", "sqlite:///new.db")
    answer = place.ok("keys", "create", "--role", "operator", "--json", *store)
    made = answer.json
    assert "sqlite:///new.db was created" in answer.err
    assert "is new" not in place.ok("keys", "create", "--role", "worker", *store).err
    assert made["id"] in [key["id"] for key in place.json("keys", "list", *store)["keys"]]


def test_a_key_is_shown_once_and_then_only_its_id(place: Place) -> None:
    """Output that stays on a screen must not reveal a secret."""
    said = place.ok("keys", "create", "--tenant", "acme", "--expires", "90d", "--name", "web shop")
    text = said.out.splitlines()[0]
    parts = parse_key_text(text)
    assert parts is not None
    assert "not shown again" in said.err
    assert "in 90 d" in said.out
    listed = place.ok("keys", "list").out
    assert listed.splitlines()[1].split()[:5] == [parts[0], "web", "shop", "acme", "tenant"]
    (key,) = place.json("keys")["keys"]
    assert (key["id"], key["state"], key["used_at"]) == (parts[0], "live", None)
    assert parts[1] not in listed + str(key)
    assert "hash" not in key


def test_roles_have_the_tenant_that_they_need(place: Place) -> None:
    """A tenant's key without a tenant would have access to none or to all."""
    made = [place.json("keys", "create", "--role", role) for role in ("operator", "worker")]
    assert [(key["tenant"], key["scopes"]) for key in made] == [
        ("default", ["admin", "imports:read", "imports:write", "jobs:read", "jobs:write", "operate"]),
        ("*", ["work"]),
    ]
    one = place.json("keys", "create", "--tenant", "acme", "--scope", "jobs:read", "--scope", "jobs:read")
    assert (one["role"], one["scopes"], one["expires_at"]) == ("tenant", ["jobs:read"], None)
    assert [key["tenant"] for key in place.json("keys", "list", "--tenant", "acme")["keys"]] == ["acme"]


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "tenant: a tenant's key belongs to one tenant; give its name"),
        (["--tenant", "*"], "tenant: * is for workers"),
        (
            ["--tenant", "acme", "--scope", "operate"],
            "scopes: role tenant cannot have operate; it can have imports:read",
        ),
        (["--tenant", "acme", "--scope", "all"], "'all' is not one of"),
        (["--tenant", "acme", "--role", "king"], "'king' is not one of"),
        (["--tenant", "acme", "--expires", "0"], "--expires: must be between 1"),
        (["--tenant", "acme", "--expires", "soon"], "'soon' is not a duration"),
    ],
)
def test_what_cannot_be_is_refused_by_name(place: Place, argv: list[str], complaint: str) -> None:
    """An error that does not name the option leaves the user guessing."""
    answer = place.run("keys", "create", *argv)
    assert answer.code == 2
    assert complaint in answer.err
    assert place.json("keys") == {"keys": []}


def test_a_revoked_key_stays_revoked(place: Place) -> None:
    """Revoking twice must not change the recorded time, which an incident report relies on."""
    made = place.json("keys", "create", "--tenant", "acme")
    assert "revoked; running services notice" in place.ok("keys", "revoke", made["id"]).out
    assert "had already been revoked" in place.ok("keys", "revoke", made["id"]).out
    assert place.json("keys", "revoke", made["id"])["state"] == "revoked"
    answer = place.run("keys", "rotate", made["id"])
    assert answer.code == 2
    assert "create a new one instead" in answer.err


def test_a_rotation_leaves_the_old_key_its_grace(place: Place) -> None:
    """Same rights and same lifetime; the old key never lives longer than before."""
    old = place.json("keys", "create", "--tenant", "acme", "--scope", "jobs:read", "--expires", "2h", "--name", "shop")
    said = place.ok("keys", "rotate", old["id"], "--grace", "1h")
    assert f"{old['id']} ends in" in said.out
    before, after = sorted(place.json("keys")["keys"], key=lambda key: str(key["created_at"]))
    assert before["expires_at"] < old["expires_at"] < after["expires_at"]
    assert [after[name] for name in ("tenant", "scopes", "name")] == ["acme", ["jobs:read"], "shop"]
    place.ok("keys", "rotate", after["id"], "--grace", "7d", "--expires", "1d")
    assert next(key for key in place.json("keys")["keys"] if key["id"] == after["id"]) == after


def test_an_id_that_nobody_has_is_told_with_a_hint(place: Place) -> None:
    """Users paste the whole key where its id is expected."""
    made = place.json("keys", "create", "--tenant", "acme")
    for verb in ("revoke", "rotate"):
        answer = place.run("keys", verb, made["key"])
        assert answer.code == 2
        assert "the id is the part after lw_" in answer.err
        assert made["key"] not in answer.err
