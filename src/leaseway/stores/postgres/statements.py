"""Every statement that this backend sends, by verb.

Most verbs are one call of a function of the schema, listed here. Queries that read tables directly are files in `sql/`.
A statement is a text with `:schema`, which `statements_for` replaces by the quoted schema name.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

QUERIES = files(__package__) / "sql"


def call(function: str, parameters: int) -> str:
    """A function that returns one value."""
    return f"SELECT :schema.{function}({_placeholders(parameters)})"


def rows(function: str, parameters: int) -> str:
    """A function that returns rows, or one row of several columns."""
    return f"SELECT * FROM :schema.{function}({_placeholders(parameters)})"


def _placeholders(count: int) -> str:
    return ", ".join(f"${n}" for n in range(1, count + 1))


KEY_COLUMNS = "id, hash, tenant, role, scopes, name, created_at, expires_at, revoked_at, used_at"

SUBMIT = (
    "SELECT :schema.submit($1::text[], $2::text[], $3::integer[], $4::text::json, $5::text[], $6::text[], "
    "$7::boolean, $8::bigint)"
)
"""The casts tell the drivers of callers the types."""

FUNCTIONS = {
    # jobs
    "submit": SUBMIT,
    "submit_and_notify": f"{SUBMIT}, :schema.notify_on_commit()",
    "submit_one": call("submit_one", 15),
    "submit_one_and_notify": f"CALL :schema.submit_one_and_notify({_placeholders(15)})",
    "submit_uniform": call("submit_uniform", 15),
    "notify_workers": call("notify_workers", 0),
    "exchange": rows("exchange", 22),
    "settle_alone": call("settle_alone", 13),
    "renew": rows("renew", 4),
    "checkpoint": call("checkpoint", 4),
    "report_progress": call("report_progress", 3),
    "wait_us": call("wait_us", 3),
    "cancel": call("cancel", 2),
    "retry": call("retry", 2),
    "run_now": call("run_now", 2),
    "discard": call("discard", 1),
    "prune": call("prune", 3),
    "now": call("now_us", 0),
    "watch_clock": call("watch_clock", 1),
    # lanes, tenants, schedules
    "pause_lanes": call("pause_lanes", 3),
    "resume_lanes": call("resume_lanes", 2),
    "open_lanes": call("open_lanes", 3),
    "set_tenant": call("set_tenant", 6),
    "forget_tenant": call("forget_tenant", 1),
    "declare_schedules": call("declare_schedules", 2),
    "fire_schedule": call("fire_schedule", 10),
    "pause_schedule": call("pause_schedule", 3),
    # workers
    "beat_worker": rows("beat_worker", 7),
    "remove_worker": call("remove_worker", 1),
    "drain_worker": call("drain_worker", 1),
    "write_pool": call("write_pool", 7),
    # the history of the work
    "replace_work_history": call("replace_work_history", 9),
    "prune_work_history": call("prune_work_history", 3),
    # limits
    "declare_limits": call("declare_limits", 2),
    "change_limit": call("change_limit", 3),
    "forget_limit": call("forget_limit", 1),
    "take_permits": rows("take_permits", 8),
    "return_permits": call("return_permits", 8),
    "renew_calls": call("renew_calls", 7),
    "end_calls": call("end_calls", 7),
    "apply_notice": call("apply_notice", 11),
    "read_levels": rows("read_levels", 3),
    # budgets
    "declare_budgets": call("declare_budgets", 2),
    "change_budget": call("change_budget", 3),
    "forget_budget": call("forget_budget", 2),
    "prune_budgets": call("prune_budgets", 3),
    "hold_budgets": rows("hold_budgets", 14),
    "post_budgets": rows("post_budgets", 19),
    "dispatch_hold": call("dispatch_hold", 2),
    "settle_hold": rows("settle_hold", 5),
    "correct_hold": rows("correct_hold", 6),
    "void_hold": call("void_hold", 2),
    "expire_holds": rows("expire_holds", 2),
    # API keys and sessions
    "add_api_key": rows("add_api_key", 15),
    "find_api_key": f"SELECT {KEY_COLUMNS} FROM :schema.find_api_key($1)",
    "list_api_keys": f"SELECT {KEY_COLUMNS} FROM :schema.list_api_keys($1, $2)",
    "revoke_api_key": call("revoke_api_key", 2),
    "expire_api_key": call("expire_api_key", 2),
    "touch_api_keys": call("touch_api_keys", 2),
    "add_api_session": call("add_api_session", 7),
    "find_api_session": "SELECT hash, key, created_at, expires_at FROM :schema.find_api_session($1)",
    "end_api_session": call("end_api_session", 1),
}

LISTS = {
    "list_schedules": "SELECT name, kind, cron, tz, missed, seen, last_fire, paused FROM :schema.schedules "
    "ORDER BY name",
    "list_tenants": "SELECT name, weight, starts, concurrency, quotas FROM :schema.tenants ORDER BY name",
    "list_pauses": "SELECT queue, tenant, since FROM :schema.pauses ORDER BY queue, tenant",
    "list_workers": "SELECT since, seen_at, drain_requested, beat FROM :schema.workers "
    "WHERE $1::text IS NULL OR tenant = $1 ORDER BY name LIMIT $2",
    "list_pools": "SELECT name, version, record, written_at FROM :schema.pools "
    "WHERE $1::text IS NULL OR name = $1 ORDER BY name LIMIT $2",
    "list_work_history": "SELECT id, level, at, tenant, queue, kind, cell FROM :schema.work_history "
    "WHERE level = $1 AND at >= $2 AND at < $3 AND ($4::text IS NULL OR tenant = $4) "
    "AND (at > $2 OR id > $6) ORDER BY at, id LIMIT $5",
    "list_limits": "SELECT definition, version FROM :schema.limits ORDER BY name",
    "list_budgets": "SELECT definition::text, version, stamp FROM :schema.budgets ORDER BY name",
    "limiter_fence": "SELECT since FROM :schema.limiter_fence WHERE made_in = tableoid",
}


@cache
def statements_for(schema: str) -> Mapping[str, str]:
    """All statements for a schema, whose name is quoted, by verb."""
    queries = {
        file.name.removesuffix(".sql"): file.read_text("utf-8")
        for file in QUERIES.iterdir()
        if file.name.endswith(".sql")
    }
    return {verb: text.replace(":schema", schema) for verb, text in (FUNCTIONS | LISTS | queries).items()}
