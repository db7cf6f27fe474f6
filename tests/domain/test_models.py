"""pydantic models in arguments and results: checked where they are submitted, and models again where they are used."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Generic, TypeVar
from uuid import UUID

import pydantic.dataclasses
import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, computed_field

from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.kind import Kind, KindDefaults
from leaseway.domain.signature.models import ERRORS_MAX
from leaseway.domain.validators import encode_payload

T = TypeVar("T")


class Size(Enum):
    SMALL = "small"


class Item(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    sku: str
    price: Decimal
    size: Size = Size.SMALL

    @computed_field  # type: ignore[prop-decorator]
    @property
    def label(self) -> str:
        return f"{self.sku} {self.size.value}"


class Order(BaseModel):
    id: UUID
    items: list[Item]
    placed_at: datetime = Field(alias="placedAt")
    note: str | None = None
    weight: float = 1.0


class Box(BaseModel, Generic[T]):
    content: T


ORDER = Order(
    id=UUID(int=7), items=[Item(sku="a", price=Decimal("1.10"))], placedAt=datetime(2025, 1, 1, tzinfo=UTC), weight=2
)


def kind(function: Callable[..., Any]) -> Kind:
    return Kind("ship", function, KindDefaults())


def ship(order: Order, others: list[Order] | None = None, box: Box[int] | None = None) -> Order: ...  # type: ignore[empty-body]


def test_a_model_arrives_as_a_model() -> None:
    """Aliases, computed fields, strict and closed models must survive the way through the store."""
    arguments = {"order": ORDER, "others": [ORDER, ORDER], "box": Box[int](content=1)}
    this = kind(ship)
    read = this.decode(this.encode(arguments))
    assert read == arguments
    assert type(read["order"].items[0]) is Item
    assert this.decode(this.encode({"order": ORDER, "others": None})) == {"order": ORDER, "others": None}


def test_a_model_can_be_given_as_a_mapping() -> None:
    """The command line and HTTP submit JSON."""
    this = kind(ship)
    given = {"id": str(UUID(int=7)), "items": [], "placedAt": "2025-01-01T00:00:00Z"}
    assert this.decode(this.encode({"order": given}))["order"].id == UUID(int=7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"items": [{"sku": "a", "price": "1", "size": "XL"}]}, r"ship: order: items\[0\].size: Input should be 's"),
        ({"items": [{"sku": 1, "price": "1"}]}, r"ship: order: items\[0\].sku: Input should be a valid string"),
        ({"placedAt": None}, r"ship: order: placedAt: Input should be a valid datetime"),
        ({"id": "x"}, r"ship: order: id: Input should be a valid UUID"),
    ],
)  # fmt: skip
def test_a_field_that_does_not_fit_is_named_at_submission(change: dict[str, Any], message: str) -> None:
    """A model can be large, and the caller must find the field."""
    given = {"id": str(UUID(int=7)), "items": [], "placedAt": "2025-01-01T00:00:00Z"} | change
    with pytest.raises(BadValue, match=message):
        kind(ship).encode({"order": given})


def test_a_message_has_no_values_and_is_bounded() -> None:
    """Messages are logged, and a value may be personal data."""
    items = [{"sku": 123454321, "price": "1"}] * 100
    given = {"id": str(UUID(int=7)), "items": items, "placedAt": "2025-01-01T00:00:00Z"}
    with pytest.raises(BadValue, match=f"and {100 - ERRORS_MAX} more") as refused:
        kind(ship).encode({"order": given})
    assert "123454321" not in str(refused.value)


def test_a_field_that_a_newer_version_added_is_named_where_the_job_runs() -> None:
    """The worker's error must say which field to give a default."""

    class NewOrder(Order):
        country: str

    def newer(order: NewOrder) -> None: ...

    text = kind(ship).encode({"order": ORDER})
    newer.__annotations__["order"] = NewOrder
    with pytest.raises(BadValue, match="ship: order: country: Field required"):
        kind(newer).decode(text)


def test_a_result_comes_back_as_the_declared_type() -> None:
    """`handle.result` is typed, so the value must be what the type says."""
    stored = {"id": str(UUID(int=7)), "items": [{"sku": "a", "price": "1.10"}], "placedAt": "2025-01-01T00:00:00Z"}
    assert kind(ship).decode_result(stored | {"weight": 2}) == ORDER

    def counts() -> dict[int, tuple[Order, datetime]]: ...  # type: ignore[empty-body]

    assert kind(counts).decode_result({"1": [stored | {"weight": 2}, "2025-01-01T00:00:00Z"]}) == {
        1: (ORDER, datetime(2025, 1, 1, tzinfo=UTC))
    }


def test_a_result_of_another_version_is_named() -> None:
    """The caller must not get half a model."""
    with pytest.raises(BadValue, match=r"ship: the result: items: Field required.*another version"):
        kind(ship).decode_result({"id": str(UUID(int=7)), "placedAt": "2025-01-01T00:00:00Z"})


@pytest.mark.parametrize(("weight", "path"), [(float("nan"), "weight"), (float("inf"), "weight")])
def test_numbers_that_json_cannot_carry_are_found_inside_models(weight: float, path: str) -> None:
    """They would become null, and the field would change its meaning."""
    with pytest.raises(BadValue, match=rf"result\[0\].{path}: is (nan|inf)"):
        encode_payload([ORDER.model_copy(update={"weight": weight})], "result")


def test_a_secret_is_refused() -> None:
    """pydantic writes stars instead, and the handler would send the stars."""

    class Login(BaseModel):
        user: str
        password: SecretStr

    with pytest.raises(BadValue, match=r"ship.login.password: is a secret"):
        encode_payload({"login": Login(user="ada", password=SecretStr("x"))}, "ship")
    assert encode_payload({"text": "*" * 20}, "ship") == '{"text":"' + "*" * 20 + '"}', "stars alone are not a secret"


@pydantic.dataclasses.dataclass
class Checked:
    age: int = Field(gt=0)


def test_a_pydantic_dataclass_is_refused() -> None:
    """msgspec would fill it without the checks that it promises."""

    def function(checked: Checked) -> None: ...

    with pytest.raises(UsageError, match="Checked is not a type that can be read"):
        kind(function)


def test_pydantic_is_not_imported_by_leaseway() -> None:
    """It is no dependency, and importing it takes a tenth of a second."""
    program = (
        "import sys\n"
        "from leaseway import App\n"
        "app = App('memory://')\n"
        "@app.job\n"
        "async def double(x: int) -> int: return 2 * x\n"
        "double.submit_sync(x=1)\n"
        "sys.exit('pydantic' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
