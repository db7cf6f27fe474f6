"""What the autoscaler did in a modelled hour, as an SVG picture: workers as steps, waiting jobs as an area."""

import math
from collections.abc import Sequence
from html import escape

from leaseway.scaling.plant import PlantReport, PlantSample

WIDTH, HEIGHT = 960, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 64, 48, 40
TICKS = 6
POINTS_MAX = 2_000
CHANGES_MAX = 500
WORKERS, READY, INK, GRID = "#0f766e", "#f59e0b", "#334155", "#e2e8f0"


def draw_svg(report: PlantReport) -> str:
    samples = thin_out(report.samples)
    seconds = max(samples[-1].at, 1.0)
    workers_top = max(report.workers_max, 1)
    ready_top = max(max(sample.ready for sample in samples), 1)
    title = (
        f"{report.workers_max:,} workers at most, {report.worker_hours:.2f} worker hours, {report.changes:,} changes, "
        f"wait {report.wait(0.95):.1f} s p95"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img"><title>{escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" fill="{INK}" font-size="14">{escape(title)}</text>',
        *time_axis(seconds),
        *count_axis(workers_top, LEFT - 8, "end", WORKERS, "workers"),
        *count_axis(ready_top, WIDTH - RIGHT + 8, "start", READY, "waiting"),
        f'<path d="{area(samples, seconds, ready_top)}" fill="{READY}" fill-opacity="0.25" stroke="{READY}"/>',
        f'<path d="{steps(samples, seconds, workers_top)}" fill="none" stroke="{WORKERS}" stroke-width="2"/>',
        *change_marks(report.samples, seconds, workers_top),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def thin_out(samples: Sequence[PlantSample]) -> list[PlantSample]:
    return list(samples[:: max(math.ceil(len(samples) / POINTS_MAX), 1)])


def x_of(at: float, seconds: float) -> float:
    return round(LEFT + at / seconds * (WIDTH - LEFT - RIGHT), 1)


def y_of(value: float, top: float) -> float:
    return round(HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM), 1)


def area(samples: Sequence[PlantSample], seconds: float, top: float) -> str:
    line = " L".join(f"{x_of(sample.at, seconds)} {y_of(sample.ready, top)}" for sample in samples)
    return f"M{x_of(0, seconds)} {y_of(0, top)} L{line} L{x_of(samples[-1].at, seconds)} {y_of(0, top)} Z"


def steps(samples: Sequence[PlantSample], seconds: float, top: float) -> str:
    first, *others = samples
    line = "".join(f" H{x_of(sample.at, seconds)} V{y_of(sample.workers, top)}" for sample in others)
    return f"M{x_of(first.at, seconds)} {y_of(first.workers, top)}{line}"


def time_axis(seconds: float) -> list[str]:
    parts = []
    for number in range(TICKS + 1):
        at = seconds * number / TICKS
        x, minutes = x_of(at, seconds), at / 60
        parts.append(f'<path d="M{x} {TOP} V{HEIGHT - BOTTOM}" stroke="{GRID}"/>')
        parts.append(
            f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="{INK}">{minutes:g} min</text>'
            if minutes == round(minutes)
            else f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="{INK}">{at:.0f} s</text>'
        )
    return parts


def count_axis(top: int, x: float, anchor: str, color: str, label: str) -> list[str]:
    values = sorted({round(top * share) for share in (0, 0.5, 1)})
    return [
        f'<text x="{x}" y="{TOP - 8}" text-anchor="{anchor}" fill="{color}">{label}</text>',
        *(
            f'<text x="{x}" y="{y_of(value, top) + 4}" text-anchor="{anchor}" fill="{color}">{value:,}</text>'
            for value in values
        ),
    ]


def change_marks(samples: Sequence[PlantSample], seconds: float, top: float) -> list[str]:
    """Each change with its reason, which browsers show under the pointer."""
    changes = [sample for sample in samples if sample.desired != sample.workers][:CHANGES_MAX]
    return [
        f'<circle cx="{x_of(each.at, seconds)}" cy="{y_of(min(each.desired, top), top)}" r="4" fill="{WORKERS}">'
        f"<title>{escape(f'{each.workers} to {each.desired}: {each.reason}')}</title></circle>"
        for each in changes
    ]
