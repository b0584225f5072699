"""Counters and durations in Prometheus' text format.

Everything happens on one event loop, so nothing is locked.
    metrics.count("requests", route="/predict", status=200)
    metrics.time("/predict", 0.012)
    metrics.text()
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters, gauges that are read on request, and a histogram of request times by route."""

    def __init__(self) -> None:
        self.counters: dict[tuple[str, Labels], float] = defaultdict(float)
        self.gauges: dict[str, Callable[[], float]] = {}
        self.times: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BUCKETS) + 1))
        self.sums: dict[str, float] = defaultdict(float)

    def count(self, name: str, by: float = 1.0, **labels: object) -> None:
        """Add to a counter."""
        self.counters[name, tuple(sorted((key, str(value)) for key, value in labels.items()))] += by

    def time(self, route: str, seconds: float) -> None:
        """Add the duration of a request to the histogram of its route."""
        self.times[route][bisect_left(BUCKETS, seconds)] += 1
        self.sums[route] += seconds

    def text(self) -> str:
        """Return all metrics in the exposition format."""
        by_name = defaultdict[str, list[tuple[Labels, float]]](list)
        for (name, labels), value in self.counters.items():
            by_name[name].append((labels, value))
        lines: list[str] = []
        for name, series in sorted(by_name.items()):
            lines.append(f"# TYPE terrella_{name}_total counter")
            for labels, value in sorted(series):
                lines.append(f"terrella_{name}_total{_labels(labels)} {_number(value)}")
        for name, read in self.gauges.items():
            lines += [f"# TYPE terrella_{name} gauge", f"terrella_{name} {_number(read())}"]
        return "\n".join([*lines, *self._histogram(), ""])

    def _histogram(self) -> list[str]:
        name = "terrella_request_seconds"
        lines = [f"# TYPE {name} histogram"] if self.times else []
        for route, counts in sorted(self.times.items()):
            total = 0
            for edge, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                total += count
                lines.append(f'{name}_bucket{{route="{route}",le="{edge}"}} {total}')
            lines.append(f'{name}_sum{{route="{route}"}} {self.sums[route]:.6f}')
            lines.append(f'{name}_count{{route="{route}"}} {total}')
        return lines


def _number(value: float) -> str:
    """All digits: a counter that is rounded stands still, then jumps."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _labels(labels: Labels) -> str:
    """Format labels without escaping: values are routes and numbers, never a client's text."""
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels) + "}" if labels else ""
