"""Hooks for Schemathesis: credentials, operations to leave out, and timeouts.

Schemathesis runs in a process of its own, configured by the environment: OPERATOR_KEY and WORKER_KEY, and ASKED, a file
to which every response is logged, so that the test can verify that all operations were called.
"""

import os
from pathlib import Path
from typing import Any

import schemathesis

OPERATOR, WORKER = os.environ["OPERATOR_KEY"], os.environ["WORKER_KEY"]
OWN_IDS = frozenset(key.split("_")[1] for key in (OPERATOR, WORKER))
NOBODY = "000000000000"
WAITS = ("wait_seconds", "seconds")
ASKED = Path(os.environ["ASKED"])


@schemathesis.auth(refresh_interval=None)
class ByScope:
    """Roles do not include each other: no key has all scopes."""

    def get(self, case: Any, context: Any) -> str:
        return WORKER if context.operation.definition.raw["x-scope"] == "work" else OPERATOR

    def set(self, case: Any, data: str, context: Any) -> None:
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {data}"}


@schemathesis.hook
def before_load_schema(context: Any, raw_schema: dict[str, Any]) -> None:
    """Schemathesis converts the schema to an older form first and then takes tuples in responses for errors."""
    loosen(raw_schema)


def loosen(node: Any) -> None:
    if isinstance(node, dict):
        if isinstance(node.get("prefixItems"), list):
            del node["prefixItems"], node["items"]
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            loosen(each)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Skips operations that would revoke its own key, and those that wait."""
    for name, value in (case.path_parameters or {}).items():
        if value in OWN_IDS:
            case.path_parameters[name] = NOBODY
    for name in WAITS:
        if is_wait((case.query or {}).get(name)):
            case.query[name] = 0


def is_wait(value: Any) -> bool:
    try:
        return 0 < float(value) <= 60
    except (TypeError, ValueError):
        return False


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    with ASKED.open("a") as asked:
        asked.write(f"{response.status_code} {case.operation.label}\n")
