"""Names with fields: Limit("maps:{tenant}", "100/minute") defines one limit per tenant."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from leaseway.domain.errors import BadValue
from leaseway.domain.validators import check_name

FIELD = re.compile(r"\{([a-z_][a-z0-9_]*)\}")


def template_fields(name: str) -> tuple[str, ...]:
    """The fields of a name: "maps:{tenant}" has one, tenant."""
    return tuple(FIELD.findall(name))


def refuse_stray_braces(field: str, name: str) -> None:
    """A misspelt field would be a part of the name, and one limit would be shared by all values."""
    rest = FIELD.sub("", name)
    if "{" in rest or "}" in rest:
        raise BadValue(field, "has a brace that is not part of a field; write fields like {tenant}")


def fill_template(name: str, values: Mapping[str, Any]) -> str:
    """Fill the fields of a name. The error names a missing value."""
    for field in template_fields(name):
        if values.get(field) is None:
            raise BadValue(field, f"is required by the name {name!r}, but the job has no such argument")
    if "tenant" in values:
        values = {**values, "tenant": escape_tenant(str(values["tenant"]), name)}
    return check_name("name", FIELD.sub(lambda found: str(values[found[1]]), name))


def escape_tenant(tenant: str, template: str) -> str:
    """A tenant as it stands in a name: with escapes for the characters that separate fields. Otherwise the tenant "a"
    could fill another field so that the name belongs to the tenant "a:b"."""
    separators = {"%", *(char for char in FIELD.sub("", template) if not char.isalnum())}
    return "".join(f"%{char.encode().hex('%').upper()}" if char in separators else char for char in tenant)


def matching_limit(name: str, limits: Iterable[str]) -> str | None:
    """The limit of this name, or the one whose fields the name fills."""
    known = list(limits)
    if name in known:
        return name
    return next((limit for limit in known if template_fields(limit) and fills_template(name, limit)), None)


def fills_template(name: str, template: str, tenant: str | None = None) -> bool:
    """Whether a name is the template with its fields filled: the field `tenant` with this tenant, if one is given, and
    all others with any text. In one pass, because clients choose both texts."""
    first, *others = FIELD.split(template)
    literals = [first]
    for field, literal in zip(others[::2], others[1::2], strict=True):
        if field == "tenant" and tenant is not None:
            literals[-1] += escape_tenant(tenant, template) + literal
        else:
            literals.append(literal)
    if len(literals) == 1:
        return name == literals[0]
    end, last = len(literals[0]), literals.pop()
    if not name.startswith(literals[0]):
        return False
    for literal in literals[1:]:
        start = name.find(literal, end + 1)
        if start < 0:
            return False
        end = start + len(literal)
    return name.endswith(last) and len(name) - len(last) > end
