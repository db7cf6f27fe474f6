"""Numbers ─► the text that Prometheus reads."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NO_LABELS: Mapping[str, str] = {}


class Sample(NamedTuple):
    value: float
    labels: Mapping[str, str] = NO_LABELS
    suffix: str = ""
    """_bucket, _sum and _count of a histogram."""


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


def exposition(families: Iterable[Family]) -> str:
    return "".join(text_of(family) for family in families)


def text_of(family: Family) -> str:
    head = f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
    return head + "".join(
        f"{family.name}{sample.suffix}{labels_of(sample.labels)} {number(sample.value)}\n" for sample in family.samples
    )


def labels_of(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
