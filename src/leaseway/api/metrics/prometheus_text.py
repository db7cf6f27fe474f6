"""metrics ─► the text format of Prometheus"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NO_LABELS: Mapping[str, str] = {}


class Sample(NamedTuple):
    value: float
    labels: Mapping[str, str] = NO_LABELS
    suffix: str = ""
    """For histograms: _bucket, _sum or _count."""


class Family(NamedTuple):
    name: str
    kind: str
    """gauge, counter or histogram"""
    help: str
    samples: Iterable[Sample]


def gauge(name: str, help: str, samples: Iterable[Sample]) -> Family:
    return Family(f"leaseway_{name}", "gauge", help, samples)


def counter(name: str, help: str, samples: Iterable[Sample]) -> Family:
    return Family(f"leaseway_{name}", "counter", help, samples)


def histogram(name: str, help: str, samples: Iterable[Sample]) -> Family:
    return Family(f"leaseway_{name}", "histogram", help, samples)


def render_text(families: Iterable[Family]) -> str:
    return "".join(render_family(family) for family in families)


def render_family(family: Family) -> str:
    head = f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
    return head + "".join(
        f"{family.name}{sample.suffix}{render_labels(sample.labels)} {render_number(sample.value)}\n"
        for sample in family.samples
    )


def render_labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{escape(value)}"' for name, value in labels.items()) + "}"


def escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def render_number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
