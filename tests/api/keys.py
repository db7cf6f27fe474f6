"""Keys for tests, made as the command line makes them."""

from typing import Any

from tests.api.serving import Served

from leaseway.domain.api_key import WantedKey
from leaseway.domain.identity import Role
from leaseway.system import random_text
from leaseway.worker.api_keys import Made, make


async def key_for(served: Served, tenant: str | None = "acme", role: Role = Role.TENANT, **wanted: Any) -> Made:
    return await make(served.service.world.store, WantedKey(tenant=tenant, role=role, **wanted), random_text)


async def operator_of(served: Served, **wanted: Any) -> Made:
    return await key_for(served, "ops", Role.OPERATOR, **wanted)


def bearer(made: Made) -> dict[str, str]:
    return {"Authorization": f"Bearer {made.text}"}
