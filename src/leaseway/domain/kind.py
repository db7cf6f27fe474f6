"""A kind of job: one function, the type of its arguments, and its defaults; and how a submission becomes a new job."""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypedDict

import msgspec
from msgspec import Struct

from leaseway.domain.budgets.budget import BudgetDefinition
from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.ids import Instant, JobId
from leaseway.domain.job import LEASE_SECONDS_MAX, LEASE_SECONDS_MIN, PRIORITY_MAX, NewJob
from leaseway.domain.limits.limit import LimitDefinition
from leaseway.domain.outcome import Backoff
from leaseway.domain.requirements import NO_REQUIREMENTS, Requirements
from leaseway.domain.signature.models import decode_custom
from leaseway.domain.signature.reader import read_signature
from leaseway.domain.validators import (
    PAYLOAD_BYTES_MAX,
    Seconds,
    check_int,
    check_name,
    encode_payload,
    parse_duration_us,
    parse_instant,
)


class KindDefaults(Struct, frozen=True, kw_only=True):
    """The options of a job whose submission does not set them."""

    queue: str = "default"
    attempts: int = 5
    timeout_us: int | None = None
    lease_us: int = 15_000_000
    backoff: Backoff = Backoff()
    priority: int = 0


class BadArguments(BadValue):
    """The arguments are JSON, but not what the function takes. Another version of the function may take them."""


class Kind:
    """One registered function. Arguments are validated by its `Arguments` type when submitted and again when run."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        defaults: KindDefaults,
        requirements: Requirements = NO_REQUIREMENTS,
    ) -> None:
        self.name = check_name("name", name)
        self.function = function
        self.defaults = defaults
        self.requirements = requirements
        self.has_requirements = bool(requirements)
        self.is_async = inspect.iscoroutinefunction(function)
        self.takes_context, self.Arguments, self.result_type = read_signature(name, function)
        self._decoder = msgspec.json.Decoder(self.Arguments, dec_hook=decode_custom)
        self._fields = self.Arguments.__struct_fields__
        self.takes_nothing = not self._fields
        self.bytes_max = PAYLOAD_BYTES_MAX
        """The most bytes of a payload; more if the app has a blob store."""

    def encode(self, arguments: Mapping[str, Any]) -> str:
        """The payload for these arguments. It is checked that `decode` can read it."""
        if not isinstance(arguments, Mapping):
            raise BadValue(self.name, f"the arguments must be a mapping by name (are {type(arguments).__name__})")
        text = encode_payload(arguments, self.name, self.bytes_max)
        self.check(text)
        return text

    def check(self, text: str) -> None:
        """Refuse a payload that `decode` could not read. The error names the argument."""
        self._parse(text)

    def _parse(self, text: str) -> Struct:
        try:
            return self._decoder.decode(text)
        except msgspec.ValidationError as error:
            raise BadArguments(*self._blame(str(error))) from None  # the message says everything that the cause says
        except msgspec.DecodeError as error:
            raise BadValue(*self._blame(str(error))) from None
        except RecursionError as error:
            raise BadValue(self.name, "is nested too deeply") from error
        except UnicodeError as error:
            raise BadValue(self.name, "contains a lone surrogate, which is not a character") from error

    def decode(self, text: str) -> dict[str, Any]:
        """The keyword arguments for the function. Arguments that were not given get the function's current defaults."""
        arguments = self._parse(text)
        given = ((name, getattr(arguments, name)) for name in self._fields)
        return {name: value for name, value in given if value is not msgspec.UNSET}

    def decode_result(self, value: Any) -> Any:
        """A stored result as the type that the function's annotation names."""
        if self.result_type is Any:
            return value
        try:
            return msgspec.convert(value, self.result_type, str_keys=True, dec_hook=decode_custom)
        except msgspec.ValidationError as error:
            field, problem = self._blame(str(error))
            raise BadValue(
                f"{field}: the result",
                f"{problem}; another version of the job stored it, or the function returns something else than it "
                "declares; find() has it as it is",
            ) from None

    def fingerprint(self, text: str) -> str:
        """A hash of kind and arguments, to recognize an idempotency key that is reused for another job."""
        return hashlib.sha256(f"{self.name}\n{text}".encode()).hexdigest()

    def _blame(self, problem: str) -> tuple[str, str]:
        """msgspec reports "Expected `int`, got `str` - at `$.x`". Put the argument's name in front."""
        what, _, place = (
            problem.rpartition(" - at `$") if problem.endswith("`") and " - at `$" in problem else (problem, "", "")
        )
        path = place.removesuffix("`").removeprefix(".")
        for theirs, ours in PHRASES.items():
            if what.startswith(theirs):
                what = ours + what.removeprefix(theirs)
        return f"{self.name}: {path}" if path else self.name, what[:1].lower() + what[1:].replace("`", "")


PHRASES = {
    "Object missing required field ": "missing required argument ",
    "Object contains unknown field ": "unknown argument ",
}


class SubmitOptions(TypedDict, total=False):
    """The options of a submission, as users give them. None: the default of the kind."""

    key: str | None
    tenant: str | None
    queue: str | None
    priority: int | None
    run_at: datetime | None
    delay: Seconds | None
    attempts: int | None
    timeout: Seconds | None
    cursor: Any
    shard_key: str | None


SUBMIT_OPTIONS = frozenset(SubmitOptions.__annotations__)


ATTEMPTS_MAX = 1_000


class JobOptions(Struct, frozen=True, kw_only=True):
    """The options of one submission, checked. None: the default of the kind."""

    key: str | None = None
    tenant: str | None = None
    queue: str | None = None
    priority: int | None = None
    run_at: Instant | None = None
    delay_us: int = 0
    attempts: int | None = None
    timeout_us: int | None = None
    cursor: str | None = None
    shard_key: str | None = None


NO_OPTIONS = JobOptions()


def parse_options(given: Mapping[str, Any]) -> JobOptions:
    """Check the options of a submission. An error names the option."""
    if not given:
        return NO_OPTIONS
    for name in given:
        if name not in SUBMIT_OPTIONS:
            raise BadValue(name, f"is not an option of a submission; the options: {', '.join(sorted(SUBMIT_OPTIONS))}")
    if given.get("run_at") is not None and given.get("delay") is not None:
        raise BadValue("delay", "cannot be given together with run_at")
    checked = {name: CHECKS[name](name, value) for name, value in given.items() if value is not None}
    if "delay" in checked:
        checked["delay_us"] = checked.pop("delay")
    if "timeout" in checked:
        checked["timeout_us"] = checked.pop("timeout")
    return JobOptions(**checked)


def check_attempts(field: str, value: object) -> int:
    return check_int(field, value, 1, ATTEMPTS_MAX)


def check_priority(field: str, value: object) -> int:
    return check_int(field, value, -PRIORITY_MAX, PRIORITY_MAX)


def parse_timeout_us(field: str, value: object) -> int:
    return parse_duration_us(field, value, least=0.001)


def parse_lease_us(field: str, value: object) -> int:
    return parse_duration_us(field, value, LEASE_SECONDS_MIN, LEASE_SECONDS_MAX)


def encode_cursor(field: str, value: object) -> str:
    return encode_payload(value, field)


CHECKS: dict[str, Any] = {
    "key": check_name,
    "tenant": check_name,
    "queue": check_name,
    "shard_key": check_name,
    "priority": check_priority,
    "run_at": parse_instant,
    "delay": parse_duration_us,
    "attempts": check_attempts,
    "timeout": parse_timeout_us,
    "cursor": encode_cursor,
}


DEFAULTS = KindDefaults()


def new_job(
    id_: JobId,
    name: str,
    payload_text: str,
    options: JobOptions,
    kind: Kind | None,
    tenant: str,
    fingerprint: str,
    key_keep_us: int,
    trace: str | None = None,
) -> NewJob:
    """The job of one submission. `kind` is None if the submitting process does not know it; a worker does."""
    defaults = DEFAULTS if kind is None else kind.defaults
    return NewJob(
        id=id_,
        kind=name,
        payload=payload_text,
        queue=options.queue or defaults.queue,
        tenant=tenant,
        priority=defaults.priority if options.priority is None else options.priority,
        attempts_max=options.attempts or defaults.attempts,
        lease_us=defaults.lease_us,
        timeout_us=options.timeout_us or defaults.timeout_us,
        delay_us=options.delay_us,
        run_at=options.run_at,
        key=options.key,
        fingerprint=fingerprint,
        key_keep_us=key_keep_us,
        shard_key=options.shard_key,
        cursor=options.cursor,
        needs=needs_text(kind, payload_text, tenant) if kind is not None and kind.has_requirements else "",
        trace=trace,
    )


def needs_text(kind: Kind, payload_text: str, tenant: str) -> str:
    return kind.requirements.text(lambda: kind.decode(payload_text), tenant)


def declared_limits(kinds: Iterable[Kind]) -> list[LimitDefinition]:
    """The limits of these kinds, each once."""
    return list({use.limit.name: use.limit.definition for kind in kinds for use in kind.requirements.uses}.values())


def declared_budgets(kinds: Iterable[Kind]) -> list[BudgetDefinition]:
    return list({budget.name: budget.definition for kind in kinds for budget in kind.requirements.budgets}.values())


def refuse_other_definitions(kind: Kind, others: Iterable[Kind]) -> None:
    """Of two definitions with one name, a worker would use the one that was declared last."""
    own = definitions_of(kind)
    for other in others if own else ():
        for what, definition in definitions_of(other).items():
            if own.get(what, definition) != definition:
                raise UsageError(
                    f"job {kind.name}: {what} is defined with other values in job {other.name}; define it once, and "
                    "give the same object to both jobs"
                )


def definitions_of(kind: Kind) -> dict[str, LimitDefinition | BudgetDefinition]:
    """By "limit maps" and "budget spend": a limit and a budget may have the same name."""
    limits = {f"limit {use.limit.name}": use.limit.definition for use in kind.requirements.uses}
    return {**limits, **{f"budget {budget.name}": budget.definition for budget in kind.requirements.budgets}}
