# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The trackers' real libraries: OpenTelemetry, MLflow with its file store, W&B offline."""

import gzip
import http.server
import json
import shlex
import socket
import struct
import sys
import threading
from datetime import timedelta
from typing import Any

import pytest

from securetrain.core.vocabulary import NOT_WATCHED, UNATTESTED
from securetrain.integrations import DEFAULTS, open_tracker
from tests.integrations.pages import snippet
from tests.integrations.runs import BEGIN, NODE, PLACE, TOKEN, MadeRun
from tests.integrations.test_following import follow
from tests.vocabulary import ran

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
"""What the libraries import warns about this and that."""

SECRETS = (NODE, PLACE, TOKEN, "10.0.0.7", socket.gethostname())


@pytest.fixture
def run(tmp_path, monkeypatch):
    for name, value in DEFAULTS.items():
        monkeypatch.setenv(name, value)
    root = tmp_path / "run"
    root.mkdir()
    made = MadeRun(root)
    made.whole()
    return made


class Collector(http.server.ThreadingHTTPServer):
    """An OTLP collector on loopback; it answers as it is told to."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[tuple[str, bytes, dict[str, str]]] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.bodies.append((self.path, body, dict(self.headers)))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def collector(monkeypatch):
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization={TOKEN}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "5")
    yield server
    server.shutdown()
    thread.join(60)
    server.server_close()


@pytest.mark.compat("opentelemetry-sdk")
def test_opentelemetry_has_one_trace_of_the_run(passed, run, collector):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    followed = follow(run, open_tracker("otlp"))
    assert (followed.told[0].undelivered, followed.told[0].problem) == (0, "")
    paths = [path for path, _, _ in collector.bodies]
    assert set(paths) == {"/v1/traces", "/v1/metrics"}
    assert all(head["authorization"] == TOKEN for _, _, head in collector.bodies)
    spans: list[Any] = []
    points: dict[str, list[Any]] = {}
    for path, body, _ in collector.bodies:
        if path == "/v1/traces":
            sent = ExportTraceServiceRequest.FromString(body)
            spans += [s for r in sent.resource_spans for c in r.scope_spans for s in c.spans]
            (resource,) = sent.resource_spans
            named = {one.key: one.value.string_value for one in resource.resource.attributes}
            assert named["securetrain.run"] == "run-7"
            assert not any(key.startswith(("host.", "process.")) for key in named)
        else:
            for metrics in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for metric in metrics.scope_metrics[0].metrics:
                    points.setdefault(metric.name, []).extend(metric.gauge.data_points)
    assert len({span.trace_id for span in spans}) == 1
    assert len({span.span_id for span in spans}) == len(spans)
    (root,) = [span for span in spans if not span.parent_span_id]
    assert root.name == "run"
    assert {span.parent_span_id for span in spans if span is not root} == {root.span_id}
    assert root.start_time_unix_nano < root.end_time_unix_nano
    assert root.start_time_unix_nano == int((BEGIN + timedelta(seconds=1)).timestamp() * 1e9)
    labels = [one.value.string_value for one in root.attributes if one.key.endswith(".labels")]
    assert UNATTESTED in labels[0]
    assert NOT_WATCHED in labels[0]
    assert [span.name for span in spans].count("step") == 11
    assert {"admission", "epoch", "save", "refusal"} <= {span.name for span in spans}
    (refusal,) = [span for span in spans if span.name == "refusal"]
    assert (refusal.status.code, refusal.status.message) == (2, "ST-GRAD-002")
    assert [point.as_double for point in points["securetrain.grad_norm"]] == [
        1.0 + step for step in range(1, 12)
    ]
    everything = b"".join(body for _, body, _ in collector.bodies)
    assert not [word for word in SECRETS if word.encode() in everything]
    passed("opentelemetry-sdk", told="one trace and gauges, at a collector on loopback")


@pytest.mark.compat("opentelemetry-sdk")
def test_opentelemetry_sends_the_same_ids_again(run, collector):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    def ids():
        collector.bodies.clear()
        follow(run, open_tracker("otlp"))
        return {
            span.span_id
            for path, body, _ in collector.bodies
            if path == "/v1/traces"
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for span in resource.scope_spans[0].spans
        }

    assert ids() == ids()


@pytest.mark.compat("opentelemetry-sdk")
def test_opentelemetry_counts_what_a_collector_refuses(run, collector):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    collector.status = 400
    followed = follow(run, open_tracker("otlp"))
    assert followed.told[0].delivered == 0
    assert followed.told[0].undelivered > 20
    assert followed.told[0].problem == "NotSentError"


@pytest.mark.compat("opentelemetry-sdk")
def test_opentelemetry_that_is_switched_off_delivers_nothing(run, collector, monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    followed = follow(run, open_tracker("otlp"))
    assert followed.told[0].delivered == 0


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    return MlflowClient()


@pytest.mark.compat("mlflow-skinny")
def test_mlflow_has_a_run_with_metrics_and_labels(passed, run, mlflow, tmp_path):
    followed = follow(run, open_tracker("mlflow"))
    assert (followed.told[0].undelivered, followed.told[0].problem) == (0, "")
    place = mlflow.get_experiment_by_name("securetrain").experiment_id
    (found,) = mlflow.search_runs([place])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run-7"
    losses = mlflow.get_metric_history(found.info.run_id, "loss")
    assert [(one.step, one.value) for one in losses] == [(n, 5.0 - n / 10) for n in range(1, 12)]
    assert losses[0].timestamp > BEGIN.timestamp() * 1000
    clean = mlflow.get_metric_history(found.info.run_id, "step_clean")
    assert [one.value for one in clean] == [1.0] * 10 + [0.0]
    tags = found.data.tags
    assert UNATTESTED in tags["securetrain.labels"]
    assert NOT_WATCHED in tags["securetrain.labels"]
    assert tags["securetrain.last-refusal"] == "ST-GRAD-002"
    assert tags["securetrain.checkpoint"] == "cd" * 32
    assert found.data.params["policy_id"] == "dev"
    follow(run, open_tracker("mlflow"))
    assert len(mlflow.search_runs([place])) == 1, "told again, it is the same run"
    files = [path for path in (tmp_path / "mlruns").rglob("*") if path.is_file()]
    for path in files:
        assert not [word for word in SECRETS if word.encode() in path.read_bytes()], path
    (events,) = [path for path in files if path.name == "events.jsonl"]
    names = [json.loads(line)["name"] for line in events.read_text().splitlines()]
    assert {"admission", "save", "refusal", "epoch"} <= set(names)
    passed("mlflow-skinny", told="one run, in its file store")


def records(data):
    """W&B's file: 7 bytes, then LevelDB's log of records in blocks of 32 KiB."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        if (left := (1 << 15) - at % (1 << 15)) < 7:
            at += left
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        piece = data[at + 7 : at + 7 + size]
        at += 7 + size
        whole = piece if kind in {1, 2} else whole + piece  # 1 whole, 2 first, 3 middle, 4 last
        if kind in {1, 4}:
            yield whole


@pytest.mark.compat("wandb")
def test_wandb_has_a_run_with_history_and_summary(passed, run, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", "local-" + "a" * 40)
    followed = follow(run, open_tracker("wandb"))
    assert (followed.told[0].undelivered, followed.told[0].problem) == (0, "")
    wandb.teardown()
    (file,) = tmp_path.rglob("*.wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    history, summary = [], {}
    for data in records(file.read_bytes()):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            history.append(
                {item.key or ".".join(item.nested_key): item.value_json for item in items}
            )
        for item in record.summary.update:
            summary[item.key or ".".join(item.nested_key)] = item.value_json
    losses = [float(row["loss"]) for row in history if "loss" in row]
    assert losses == [pytest.approx(5.0 - n / 10) for n in range(1, 12)]
    assert [json.loads(row["verdict"]) for row in history if "verdict" in row][-1] == "refused"
    assert "refusal" in [json.loads(row["event"]) for row in history if "event" in row]
    assert UNATTESTED in json.loads(summary["securetrain/labels"])
    assert json.loads(summary["securetrain/outcome"]) == "succeeded"
    everything = b"".join(
        path.read_bytes() for path in tmp_path.glob("wandb/**/*") if path.is_file()
    )
    assert b"run-7" in everything
    assert not [word for word in (*SECRETS, "a" * 40) if word.encode() in everything]
    passed("wandb", told="one run, offline")


@pytest.mark.compat("mlflow-skinny")
def test_the_page_tells_a_run_as_it_stands(run, mlflow, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    run.root.rename(tmp_path / "runs/my-run")
    monkeypatch.chdir(tmp_path)
    words = shlex.split(snippet("docs/how-to/follow-a-run.md", "after"))
    assert words[0] == "securetrain"
    done = ran([sys.executable, "-m", *words])
    assert "mlflow: " in done.stdout
    place = mlflow.get_experiment_by_name("securetrain").experiment_id
    assert len(mlflow.search_runs([place])) == 1
