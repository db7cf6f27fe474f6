"""A kind of job: one function, the type of its arguments, and its defaults; and how a submission becomes a new job."""

import hashlib
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import msgspec.inspect
from msgspec import Struct

from leaseway.domain import payload
from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.ids import Instant, JobId
from leaseway.domain.job import PRIORITY_MAX, NewJob
from leaseway.domain.outcome import Backoff
from leaseway.domain.requirements import NO_REQUIREMENTS, Requirements
from leaseway.domain.validators import check_int, check_name, parse_duration_us, parse_instant

CONTEXT = "ctx"


class KindDefaults(Struct, frozen=True, kw_only=True):
    """The options of a job whose submission does not set them."""

    queue: str = "default"
    attempts: int = 5
    timeout_us: int | None = None
    lease_us: int = 15_000_000
    backoff: Backoff = Backoff()
    priority: int = 0


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
        self.takes_context, self.Arguments = read_signature(name, function)
        self._decoder = msgspec.json.Decoder(self.Arguments)
        self._fields = self.Arguments.__struct_fields__
        self.takes_nothing = not self._fields

    def encode(self, arguments: Mapping[str, Any]) -> str:
        """The payload for these arguments. It is checked that `decode` can read it."""
        text = payload.encode(arguments, self.name)
        self.check(text)
        return text

    def check(self, text: str) -> None:
        """Refuse a payload that `decode` could not read. The error names the argument."""
        try:
            self._decoder.decode(text)
        except msgspec.DecodeError as error:  # ValidationError is one of these
            raise BadValue(*self._blame(str(error))) from None  # the message says everything that the cause says
        except RecursionError as error:
            raise BadValue(self.name, "is nested too deeply") from error
        except UnicodeError as error:
            raise BadValue(self.name, "contains a lone surrogate, which is not a character") from error

    def decode(self, text: str) -> dict[str, Any]:
        """The keyword arguments for the function. Arguments that were not given get the function's current defaults."""
        arguments = self._decoder.decode(text)
        given = ((name, getattr(arguments, name)) for name in self._fields)
        return {name: value for name, value in given if value is not msgspec.UNSET}

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


def read_signature(name: str, function: Callable[..., Any]) -> tuple[bool, type[Struct]]:
    """Whether the function takes the context, and a type for its other parameters."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, SyntaxError, TypeError, ValueError, AttributeError) as error:
        problem = f"job {name}: the signature cannot be read: {error}"
        raise UsageError(f"{problem}; the types of arguments must be defined at module level") from error
    takes_context = bool(parameters) and parameters[0].name == CONTEXT
    fields = [argument_field(name, parameter, hints) for parameter in parameters[takes_context:]]
    try:
        shape = msgspec.defstruct(f"{name} arguments", fields, kw_only=True, forbid_unknown_fields=True)
        refuse_custom_types(msgspec.inspect.type_info(shape))
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"job {name}: an argument cannot be read from JSON: {error}") from error
    return takes_context, shape


def refuse_custom_types(shape: Any) -> None:
    """msgspec accepts types that it does not know, but it cannot create their values from JSON."""
    waiting, seen = [shape], set()
    while waiting:
        each = waiting.pop()
        if isinstance(each, msgspec.inspect.CustomType):
            raise TypeError(f"{each.cls.__name__} is not a type that can be read from JSON")
        if isinstance(each, list | tuple):
            waiting += each
        elif isinstance(each, Struct) and id(each) not in seen:
            seen.add(id(each))
            waiting += [getattr(each, field) for field in each.__struct_fields__]


def argument_field(name: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise UsageError(
            f"job {name}: parameter {parameter.name!r} has no fixed name; replace *args, **kwargs and positional-only "
            "parameters by named ones"
        )
    if parameter.name in SUBMIT_OPTIONS:
        raise UsageError(
            f"job {name}: parameter {parameter.name!r} is also an option of submit(); rename the parameter"
        )
    hint = hints.get(parameter.name, Any)
    if parameter.default is parameter.empty:
        return (parameter.name, hint)
    # UNSET marks an argument that was not given, so that the function's default at run time applies.
    return (parameter.name, hint | msgspec.UnsetType, msgspec.UNSET)


SUBMIT_OPTIONS = frozenset(
    ["key", "tenant", "queue", "priority", "run_at", "delay", "attempts", "timeout", "cursor", "shard_key"]
)
"""Names that submit() reserves for its options."""


ATTEMPTS_MAX = 1_000
LEASE_SECONDS_MIN = 1
LEASE_SECONDS_MAX = 86_400


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


def parse_options(given: dict[str, Any]) -> JobOptions:
    """Check the options of a submission. An error names the option."""
    if not given:
        return NO_OPTIONS
    for name in given:
        if name not in SUBMIT_OPTIONS:
            raise BadValue(name, f"is not an option of submit(); its options: {', '.join(sorted(SUBMIT_OPTIONS))}")
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
    return payload.encode(value, field)


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
