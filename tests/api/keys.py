"""API keys for tests, created in the same way as by the command line."""

from typing import Any

from tests.api.running_service import Served

from leaseway.domain.identity import KeyRequest, Role
from leaseway.system import random_text
from leaseway.worker.api_keys import MadeKey, make


async def key_for(served: Served, tenant: str | None = "acme", role: Role = Role.TENANT, **wanted: Any) -> MadeKey:
    return await make(served.service.world.store, KeyRequest(tenant=tenant, role=role, **wanted), random_text)


async def operator_of(served: Served, **wanted: Any) -> MadeKey:
    return await key_for(served, "ops", Role.OPERATOR, **wanted)


def bearer(made: MadeKey) -> dict[str, str]:
    return {"Authorization": f"Bearer {made.text}"}
