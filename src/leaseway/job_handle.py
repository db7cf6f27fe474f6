"""What `@app.job` makes of a function, and how jobs and schedules are registered."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.job import Submitted
from leaseway.domain.kind import NO_OPTIONS, SUBMIT_OPTIONS, Kind, KindDefaults, parse_options
from leaseway.domain.requirements import Requirements
from leaseway.domain.schedule import Missed, Schedule, check_schedule
from leaseway.domain.validators import check_name
from leaseway.ports.clock import Ids
from leaseway.worker.maintenance import FIRE_TIME, scheduled_job
from leaseway.worker.submit import Bound

if TYPE_CHECKING:
    from leaseway.app import App

P = ParamSpec("P")
R = TypeVar("R")


class JobHandle(Generic[P, R]):
    """A function that is a job, made by `@app.job`. Calling it runs the function directly, which is useful in tests."""

    def __init__(self, app: "App", kind: Kind) -> None:
        self.app = app
        self.kind = kind
        self.name = kind.name
        self.__doc__ = kind.function.__doc__
        self.__wrapped__ = kind.function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.kind.function(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<job {self.name}>"

    def bind(self, **given: Any) -> Bound:
        """Check arguments and options. The result can be passed to `app.submit_many` or `ctx.submit`."""
        if SUBMIT_OPTIONS.isdisjoint(given):
            return Bound(self.kind, self.kind.encode(given), NO_OPTIONS)
        options = {name: given.pop(name) for name in SUBMIT_OPTIONS & given.keys()}
        return Bound(self.kind, self.kind.encode(given), parse_options(options))

    async def submit(self, **given: Any) -> Submitted:
        """Submit one job. Give the function's arguments by name, and these options:

        `key`: an idempotency key; a second submission with the same key returns the first job. `tenant`, `queue`,
        `priority` (higher runs first). `run_at` (a datetime) or `delay`: when to run it. `attempts`, `timeout`: instead
        of those of the kind. `cursor`: the first value of `ctx.cursor`. `shard_key`: a label for filtering.
        """
        return await self.app.submit(self.bind(**given))

    async def submit_many(self, arguments: Iterable[Mapping[str, Any]], **options: Any) -> list[Submitted]:
        """Submit one job for each mapping of arguments, all with the same options."""
        return await self.app.submit_many(self._each(arguments, options))

    def submit_sync(self, **given: Any) -> Submitted:
        """Like `submit`, for code that is not async."""
        return self.app.submit_sync(self.bind(**given))

    def submit_many_sync(self, arguments: Iterable[Mapping[str, Any]], **options: Any) -> list[Submitted]:
        """Like `submit_many`, for code that is not async."""
        return self.app.submit_many_sync(self._each(arguments, options))

    def _each(self, arguments: Iterable[Mapping[str, Any]], options: dict[str, Any]) -> Iterator[Bound]:
        if "key" in options:
            raise BadValue("key", "one key cannot identify many jobs; bind each job with its own key")
        checked = parse_options(options)
        for index, each in enumerate(arguments):
            try:
                text = self.kind.encode(each)
            except BadValue as error:
                raise BadValue(f"item {index}: {error.field}", error.problem) from error
            yield Bound(self.kind, text, checked)


def register_job(
    app: "App", function: Callable[..., Any], name: str, defaults: KindDefaults, requirements: Requirements
) -> JobHandle[..., Any]:
    if isinstance(function, JobHandle):
        raise UsageError(f"{function.name} is a job already; to schedule it, write @app.cron above @app.job")
    if name in app.kinds:
        raise UsageError(f"there are two jobs named {name!r}; give one of them another name=")
    kind = app.kinds[name] = Kind(name, function, defaults, requirements)
    return JobHandle(app, kind)


def make_schedule(kind: Kind, name: str, expression: str, tz: str, missed: str, ids: Ids) -> Schedule:
    """A schedule whose job can be submitted without arguments."""
    if missed not in [policy.value for policy in Missed]:
        raise BadValue(f"cron {name}: missed", f"must be latest, all or skip (is {missed!r})")
    schedule = Schedule(name=check_name("name", name), kind=kind.name, cron=expression, tz=tz, missed=Missed(missed))
    check_schedule(schedule)
    required = required_parameters(kind)
    missing = [field for field in kind.Arguments.__struct_fields__ if field != FIRE_TIME and field in required]
    if missing:
        raise UsageError(f"cron {name}: the job's argument {missing[0]!r} has no value; give it a default")
    scheduled_job(schedule, kind, 0, ids)  # a job that cannot be built now could not be built at a fire time
    return schedule


def required_parameters(kind: Kind) -> list[str]:
    parameters = inspect.signature(kind.function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.default is parameter.empty]
