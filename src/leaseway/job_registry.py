"""The jobs of an app: `@app.job`, `@app.cron`, and the types of what they make of a function.

A handle has one type parameter, the type of its function. `submit` and `bind` take the function's parameters without
`ctx`, `result` returns what the function returns, and a call of the handle calls the function. See
docs/decisions/0020-typed-submissions.md.
"""

import inspect
import typing
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from leaseway.domain.budgets.budget import Budget
from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.job import Submitted
from leaseway.domain.kind import (
    Kind,
    KindDefaults,
    check_attempts,
    check_priority,
    parse_lease_us,
    parse_timeout_us,
    refuse_other_definitions,
)
from leaseway.domain.outcome import Backoff, parse_backoff
from leaseway.domain.requirements import (
    HOLD_CALL,
    BudgetOption,
    LimitsOption,
    Requirements,
    parse_budgets,
    parse_limit_uses,
)
from leaseway.domain.schedule import Schedule
from leaseway.domain.signature.reader import CONTEXT, argument_defaults, name_of
from leaseway.domain.validators import Seconds, check_name, parse_names
from leaseway.store_session import StoreSession
from leaseway.worker.context import Context, HandlerContext, SyncContext
from leaseway.worker.maintenance import make_schedule
from leaseway.worker.submit import Bound, F_co, JobHandle

if TYPE_CHECKING:
    from leaseway.app import App

DEFAULT_BACKOFF = Backoff()

P = ParamSpec("P")

# -- handles and decorators, as type checkers see them -------------------------------------------------------------
# A type checker tells the context apart by its name, as `Kind` does: a first parameter of another name is an argument.
# Each overload takes the function as a type variable: if the parameters of the overloads differed, mypy would answer
# Any for functions with Any in their signature.


class JobWithContext(JobHandle[F_co]):
    """The handle of a function whose first parameter is `ctx`, which a submission does not give."""

    if TYPE_CHECKING:

        def bind(self: "ContextFunction[P]", /, *args: P.args, **kwargs: P.kwargs) -> Bound:
            raise NotImplementedError

        async def submit(self: "ContextFunction[P]", /, *args: P.args, **kwargs: P.kwargs) -> Submitted:
            raise NotImplementedError

        def submit_sync(self: "ContextFunction[P]", /, *args: P.args, **kwargs: P.kwargs) -> Submitted:
            raise NotImplementedError


class JobWithoutContext(JobHandle[F_co]):
    """The handle of a function that takes nothing but its arguments."""

    if TYPE_CHECKING:

        def bind(self: "PlainFunction[P]", /, *args: P.args, **kwargs: P.kwargs) -> Bound:
            raise NotImplementedError

        async def submit(self: "PlainFunction[P]", /, *args: P.args, **kwargs: P.kwargs) -> Submitted:
            raise NotImplementedError

        def submit_sync(self: "PlainFunction[P]", /, *args: P.args, **kwargs: P.kwargs) -> Submitted:
            raise NotImplementedError


ContextFunction = JobWithContext[Callable[Concatenate[Any, P], Any]]
PlainFunction = JobWithoutContext[Callable[P, Any]]


class AsyncHandler(Protocol):
    def __call__(self, ctx: Context, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]: ...


class PlainHandler(Protocol):
    def __call__(self, ctx: SyncContext, *args: Any, **kwargs: Any) -> Any: ...


class PlainHandlerOfContext(Protocol):
    def __call__(self, ctx: Context, *args: Any, **kwargs: Any) -> Any: ...


Async = TypeVar("Async", bound=AsyncHandler)
Plain = TypeVar("Plain", bound=PlainHandler)
WrongPlain = TypeVar("WrongPlain", bound=PlainHandlerOfContext)
Function = TypeVar("Function", bound=Callable[..., Any])
Handle = TypeVar("Handle", bound=JobHandle[Any])


class PlainFunctionNeedsSyncContext:
    """What a type checker sees instead of a handle: annotate `ctx` with `SyncContext`."""


class JobDecorator(Protocol):
    """`@app.job(…)`."""

    @overload
    def __call__(self, function: Async, /) -> JobWithContext[Async]: ...
    @overload
    def __call__(self, function: Plain, /) -> JobWithContext[Plain]: ...
    @overload
    def __call__(self, function: WrongPlain, /) -> PlainFunctionNeedsSyncContext: ...
    @overload
    def __call__(self, function: Function, /) -> JobWithoutContext[Function]: ...


class CronDecorator(Protocol):
    """`@app.cron(…)`."""

    @overload
    def __call__(self, job: Handle, /) -> Handle: ...
    @overload
    def __call__(self, job: Callable[..., Any], /) -> JobHandle[Any]: ...


# -- declaring ------------------------------------------------------------------------------------------------------


class JobRegistry(StoreSession):
    """The part of `App` that declares jobs."""

    kinds: dict[str, Kind]
    schedules: dict[str, Schedule]

    @overload
    def job(self, function: Async, /) -> JobWithContext[Async]: ...
    @overload
    def job(self, function: Plain, /) -> JobWithContext[Plain]: ...
    @overload
    def job(self, function: WrongPlain, /) -> PlainFunctionNeedsSyncContext: ...
    @overload
    def job(self, function: Function, /) -> JobWithoutContext[Function]: ...
    @overload
    def job(
        self,
        /,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        queue: str = "default",
        attempts: int = 5,
        timeout: Seconds | None = None,
        lease: Seconds = 15,
        backoff: Backoff | Seconds = DEFAULT_BACKOFF,
        priority: int = 0,
        limits: LimitsOption = (),
        budget: BudgetOption | None = None,
        budgets: Sequence[Budget] = (),
        cost: object = None,
        cost_usd: object = None,
        hold: str = HOLD_CALL,
    ) -> JobDecorator: ...

    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        queue: str = "default",
        attempts: int = 5,
        timeout: Seconds | None = None,
        lease: Seconds = 15,
        backoff: Backoff | Seconds = DEFAULT_BACKOFF,
        priority: int = 0,
        limits: LimitsOption = (),
        budget: BudgetOption | None = None,
        budgets: Sequence[Budget] = (),
        cost: object = None,
        cost_usd: object = None,
        hold: str = HOLD_CALL,
    ) -> Any:
        """Make a function a job: `@app.job` or `@app.job(queue="mail", attempts=3)`.

        The first parameter may be the context: `ctx: Context` in an async function, `ctx: SyncContext` in a plain one.
        The others are the job's arguments.

        `name`: default: the function's name. `aliases`: former names; workers run jobs that were submitted under them.
        `queue`, `priority` (-1,000 to 1,000, higher runs first). `attempts`: how
        often the job is tried before it fails. `timeout`: ends an attempt that takes longer. `lease`: after how long
        another worker may take over the job of a worker that died. `backoff`: the delay after the first failure, or a
        `Backoff`. Durations are seconds or timedeltas.

        `limits`: each call to the provider (`ctx.http`, `ctx.call()`) takes a permit of them, and a job starts only
        when they allow it. `budget`, `budgets`: each call is charged to them. `cost`: the highest cost of one call,
        in the unit of the budget: a number, a mapping from units to numbers, or a function of the job's arguments
        that returns one of these. `cost_usd`: the same in US dollars. `hold="job"`: `cost` is the highest cost of the
        whole job, reserved before its first call, so that a budget is not spread over half-done jobs.
        """
        defaults = KindDefaults(
            queue=check_name("queue", queue),
            attempts=check_attempts("attempts", attempts),
            timeout_us=None if timeout is None else parse_timeout_us("timeout", timeout),
            lease_us=parse_lease_us("lease", lease),
            backoff=parse_backoff("backoff", backoff),
            priority=check_priority("priority", priority),
        )

        if cost is not None and cost_usd is not None:
            raise BadValue("cost", "is given together with cost_usd; a cost in several units is cost={'usd': …, …}")
        most = {"usd": cost_usd} if cost_usd is not None else cost
        others = parse_names("aliases", aliases)

        def register(function: Callable[..., Any]) -> JobHandle[Any]:
            named = name_of(function) if name is None else name
            uses = parse_limit_uses(f"job {named}: limits", limits)
            charged = () if budget is None else parse_budgets(f"job {named}: budget", budget)
            charged += parse_budgets(f"job {named}: budgets", budgets)
            requirements = Requirements(named, uses, charged, most, hold, argument_defaults(function))
            return register_job(cast("App", self), function, (named, *others), defaults, requirements)

        return register if function is None else register(function)

    def cron(
        self, expression: str, *, tz: str = "UTC", missed: str = "latest", name: str | None = None
    ) -> CronDecorator:
        """Submit a job at the times of a cron expression: `@app.cron("0 3 * * *", tz="Europe/Berlin")`.

        Write it above `@app.job`, or alone. `missed`: what happens to fire times that passed while no worker ran:
        "latest" submits one job, "all" one for each, "skip" none. A parameter named `fire_time` receives the time
        that was due.
        """

        def register(target: Any) -> Any:
            handle = target if isinstance(target, JobHandle) else self.job(target)
            if handle.app is not self:  # its workers would never fire it
                raise UsageError(f"{handle.name} is a job of another app; schedule it there")
            named = name or handle.kind.name
            if named in self.schedules:
                raise UsageError(f"there are two schedules named {named!r}; give one of them another name=")
            self.schedules[named] = make_schedule(handle.kind, named, expression, tz, missed, self._world.ids)
            return handle

        return register


def register_job(
    app: "App", function: Callable[..., Any], names: tuple[str, ...], defaults: KindDefaults, requirements: Requirements
) -> JobHandle[Any]:
    """The first name is the kind's own; the others are aliases."""
    name = names[0]
    if isinstance(function, JobHandle):
        raise UsageError(f"{function.name} is a job already; to schedule it, write @app.cron above @app.job")
    for each in names:
        if each in app.kinds or names.count(each) > 1:
            raise UsageError(f"there are two jobs named {each!r}; give one of them another name=")
    check_context(name, function)
    kind = Kind(name, function, defaults, requirements)
    requirements.check_arguments(kind.Arguments.__struct_fields__)
    refuse_other_definitions(kind, app.kinds.values())
    kind.bytes_max = app.world.blobs.bytes_max
    app.kinds.update(dict.fromkeys(names, kind))
    return (JobWithContext if kind.takes_context else JobWithoutContext)(app, kind)


def check_context(name: str, function: Callable[..., Any]) -> None:
    """Refuse the context of the other kind of function, and a context under another name."""
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - annotations are the user's code; the reader of signatures reports the error
        return
    first = next(iter(inspect.signature(function).parameters), None)
    right = Context if inspect.iscoroutinefunction(function) else SyncContext
    for parameter, hint in hints.items():
        kinds = [each for each in (hint, *typing.get_args(hint)) if isinstance(each, type)]
        contexts = [each for each in kinds if issubclass(each, HandlerContext)]
        is_given = parameter == CONTEXT and first == CONTEXT
        if contexts and not is_given and parameter != "return":
            raise UsageError(f"job {name}: parameter {parameter!r} is a context; make it the first one and name it ctx")
        if is_given and isinstance(hint, type) and hint is not Any and not accepts(hint, right):
            raise UsageError(f"job {name}: {WRONG_CONTEXT[right]}")


def accepts(hint: type, right: type[HandlerContext]) -> bool:
    """Whether a parameter with this annotation can be the context."""
    is_protocol = getattr(hint, "_is_protocol", False)
    return hint is HandlerContext or is_protocol or issubclass(hint, right) or issubclass(right, hint)


WRONG_CONTEXT: dict[type[HandlerContext], str] = {
    Context: "an async function takes `ctx: Context`, whose methods it awaits; SyncContext is for plain functions",
    SyncContext: "a plain function takes `ctx: SyncContext`, whose methods block; Context is for async functions",
}
