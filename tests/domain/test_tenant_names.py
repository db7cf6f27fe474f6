"""Names that belong to a tenant: the namespace of its workers, and its limits and budgets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.domain.tenant import DefinedNames, namespace, qualify

TENANTS = ["a", "b", "a/b", "a%2Fb", "a/", "~", "%", "tenant", "a" * 200, "a" * 199 + "b", "~" + "0" * 32, "ä", "{x}"]


@given(st.sampled_from(TENANTS), st.sampled_from(TENANTS), st.text(max_size=20), st.text(max_size=20))
def test_two_tenants_never_store_the_same_name(one: str, other: str, name: str, guess: str) -> None:
    """A worker of one tenant could otherwise name the lease or the hold of another one."""
    stored = qualify(one, name)
    assert qualify(one, stored) == stored
    assert stored.startswith(namespace(one))
    if one != other:
        assert not stored.startswith(namespace(other))
        assert qualify(other, guess) != stored
        assert qualify(other, stored) != stored


def test_a_namespace_leaves_room_for_a_name() -> None:
    """Stores refuse names of more than 200 characters, and a tenant's name may have as many."""
    assert max(len(namespace(tenant)) for tenant in TENANTS) <= 65


DEFINED = DefinedNames(
    [
        "maps",
        "maps:{tenant}",
        "maps:{tenant}~degraded",
        "mail:{account}",
        "mail:globex",
        "sms:{tenant}:{account}",
        "sms:globex:1",
    ]
)


@pytest.mark.parametrize(
    ("name", "template", "expected"),
    [
        ("maps", "maps", "shared"),
        ("maps:acme", "maps:{tenant}", "own"),
        ("maps:acme", "maps:acme", "own"),
        ("maps:globex", "maps:{tenant}", "foreign"),
        ("maps:globex", "maps:globex", "foreign"),
        ("maps:globex", "maps", "foreign"),
        ("maps:globex", "maps:{any}", "foreign"),
        ("maps:acme~degraded", "maps:{tenant}~degraded", "own"),
        ("maps:{tenant}~degraded", "maps:{tenant}~degraded", "shared"),
        ("mail:1", "mail:{account}", "shared"),
        ("mail:globex", "mail:{account}", "shared"),
        ("sms:acme:1", "sms:{tenant}:{account}", "own"),
        ("sms:globex:1", "sms:{tenant}:{account}", "foreign"),
        ("sms:globex:1", "sms:globex:1", "foreign"),
        ("unknown", "unknown", "shared"),
        ("maps", "unknown", "foreign"),
    ],
)
def test_a_name_says_whose_limit_it_is(name: str, template: str, expected: str) -> None:
    """The store uses the definition of the full name first, so a caller can name any template beside it."""
    assert DEFINED.ownership("acme", name, template).value == expected
