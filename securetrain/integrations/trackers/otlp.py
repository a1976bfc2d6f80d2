# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry: a launch is a trace, its figures are gauges; sent by OTLP over HTTP.

Ids follow from the run's id and the item's key, so that a span which is sent twice is one span.
Exporters read their own variables (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``..._HEADERS``): no address
and no token passes through here. The resource names the run and this program, and no machine.
"""

import hashlib
import os
from collections.abc import Sequence
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    Gauge,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider, sampling
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from securetrain.integrations.trackers.items import Began, Ended, Item, Measured, Span, Values

SCOPE: Final = "securetrain"
ROOT: Final = "run"
_GAUGES: Final = {"loss": "nat", "grad_norm": "1", "tokens_per_second": "1/s", "val_loss": "nat"}


class NotSentError(Exception):
    """The exporter gave up."""


class _Ids(IdGenerator):
    """The ids of the next span."""

    trace = span = 1

    def generate_span_id(self) -> int:
        return self.span

    def generate_trace_id(self) -> int:
        return self.trace


class _Collected(SpanProcessor):
    """Ended spans that wait to be exported."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class Otlp:
    """The tracker."""

    def __init__(
        self, spans: SpanExporter | None = None, metrics: MetricExporter | None = None
    ) -> None:
        """Take the exporters; those of OTLP over HTTP where there are none."""
        self._spans: Any = spans or OTLPSpanExporter()
        self._metrics: Any = metrics
        if metrics is None and os.environ.get("OTEL_METRICS_EXPORTER") != "none":
            self._metrics = OTLPMetricExporter()
        self._ids, self._collected = _Ids(), _Collected()
        self._began: Began | None = None
        self._tracer: Any = None
        self._resource: Any = None

    def give(self, items: Sequence[Item]) -> None:
        """Export items as spans and gauges.

        Raises:
            NotSentError: A collector did not take them.
        """
        began = self._began
        points: list[Metric] = []
        self._collected.spans.clear()
        wanted = 0
        for item in items:
            match item:
                case Began():
                    self._begin(item)
                case Measured(time=float()):
                    points += _gauges(item)
                case Span():
                    self._span(item.key, item.name, item.begin, item.end, item.said, item.code)
                    wanted += 1
                case Ended() if self._began is not None and item.outcome:
                    begin = self._began
                    said = {**begin.said, **item.said, "labels": ", ".join(item.labels)}
                    code = str(item.said.get("code", ""))
                    self._span(ROOT, ROOT, begin.time, item.time, said, code)
                    wanted += 1
        sent = len(self._collected.spans) == wanted and self._send(points)
        if not sent:
            self._began = began if began is not None else self._began
            raise NotSentError

    def _send(self, points: list[Metric]) -> bool:
        spans = list(self._collected.spans)
        if spans and self._spans.export(spans) is not SpanExportResult.SUCCESS:
            return False
        if not points or self._metrics is None:
            return True
        scope = ScopeMetrics(scope=InstrumentationScope(SCOPE), metrics=points, schema_url="")
        data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
        return bool(self._metrics.export(data) is MetricExportResult.SUCCESS)

    def close(self) -> None:
        """Close the exporters."""
        self._spans.shutdown()
        if self._metrics is not None:
            self._metrics.shutdown()

    def _begin(self, item: Began) -> None:
        self._began = item
        self._resource = Resource({"service.name": SCOPE, "securetrain.run": item.run})
        provider = TracerProvider(
            sampler=sampling.ALWAYS_ON,
            resource=self._resource,
            shutdown_on_exit=False,
            id_generator=self._ids,
        )
        provider.add_span_processor(self._collected)
        self._tracer = provider.get_tracer(SCOPE)
        self._ids.trace = _id(16, item.run, str(item.number))

    def _span(  # noqa: PLR0917 - one call each
        self, key: str, name: str, begin: float, end: float, said: Values, code: str
    ) -> None:
        if self._tracer is None:  # a ledger begins with a launch; the rest of one does not count
            raise NotSentError
        root = _id(8, str(self._ids.trace), ROOT)
        self._ids.span = _id(8, str(self._ids.trace), key)
        above = trace.SpanContext(
            self._ids.trace, root, is_remote=True, trace_flags=trace.TraceFlags(1)
        )
        context = trace.set_span_in_context(trace.NonRecordingSpan(above))
        if key == ROOT:
            context = trace.set_span_in_context(trace.INVALID_SPAN)
        attributes = {f"securetrain.{name}": value for name, value in said.items()}
        span = self._tracer.start_span(
            name, context=context, attributes=attributes, start_time=_nanoseconds(begin)
        )
        if code:
            span.set_status(trace.Status(trace.StatusCode.ERROR, code))
        span.end(_nanoseconds(end))


def _gauges(item: Measured) -> list[Metric]:
    assert item.time is not None
    at = _nanoseconds(item.time)
    attributes = {"securetrain.verdict": item.verdict, "securetrain.signed": False}
    found = []
    for name, unit in _GAUGES.items():
        if name in item.values:
            point = NumberDataPoint(attributes, at, at, item.values[name])
            found.append(Metric(f"securetrain.{name}", "", unit, Gauge([point])))
    step = NumberDataPoint(attributes, at, at, item.step)
    found.append(Metric("securetrain.step", "", "1", Gauge([step])))
    return found


def _id(size: int, *parts: str) -> int:
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(digest[:size], "big") or 1


def _nanoseconds(time: float) -> int:
    return int(time * 1e9)
