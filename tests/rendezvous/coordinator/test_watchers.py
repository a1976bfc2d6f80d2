# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Figures and notices of a coordinator, and who tries to misuse them.

Commands of docs/how-to/share-a-fleet.md are tried here.
"""

import hashlib
import hmac
import json
import socket
import ssl
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from securetrain.core.errors import AdmissionError, AttestationError, UsageError
from securetrain.core.vocabulary import NodeTier
from securetrain.ledger import events
from securetrain.ledger.events import encode_event
from securetrain.rendezvous.coordinator import Watchers, webhook
from securetrain.rendezvous.coordinator.figures import Figures
from securetrain.rendezvous.coordinator.webhook import PER_MINUTE, Target, Webhook, kind_of
from tests import vocabulary
from tests.rendezvous.webhook_reader import Reader
from tests.tables import items
from tests.vocabulary import refused

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
SECRET = b"s" * 32
BARRED = AttestationError("ST-ATTS-008", "PCR 4 differs", "node node-0: PCR 4")


def line(event):
    return encode_event(event)


EVICTED = line(events.NodeEvicted.of(BARRED, "node-0"))
REFUSED = line(events.NodeRefused.of(AttestationError("ST-ATTS-012"), "node-1"))
LATE = line(events.NodeEvicted.of(AdmissionError("ST-ADMN-042"), "node-2"))


@pytest.fixture
def stack():
    with ExitStack() as made:
        yield made


def send(stack, reader, *lines, **how):
    hook = Webhook(Target.of(reader.url), SECRET, "job-1", lambda: NOW, pause=0.01, **how)
    for one in lines:
        hook.take(one)
    hook.stop(60)
    return hook


def test_a_bar_a_refusal_and_an_ending_are_told_and_signed(stack):
    reader = stack.enter_context(closing(Reader(200)))
    ending = line(events.ReferenceValuesEnding(days=2))
    admitted = line(events.NodeAdmitted(subject="node-9", tier=NodeTier.TPM))
    cached = line(events.CollateralEnding(subject="crl of the vendor", kind="collateral", days=14))
    hook = send(stack, reader, EVICTED, REFUSED, LATE, ending, admitted, cached)
    assert (hook.sent, hook.lost) == (5, 0)
    found = [json.loads(body) for _, body, _ in reader.heard]
    assert [one["kind"] for one in found] == [
        *("bar", "refusal", "refusal", "expiry", "expiry"),
    ]
    assert found[4]["subject"] == "crl of the vendor"
    assert found[0]["subject"] == "node-0"
    assert found[0]["code"] == "ST-ATTS-008"
    assert found[3]["text"] == "2"
    assert len({one["id"] for one in found}) == 5
    for headers, body, path in reader.heard:
        assert path == "/hook"
        seconds, mac = (part.partition("=")[2] for part in headers[webhook.SIGNATURE].split(","))
        assert int(seconds) == int(NOW.timestamp())
        expected = hmac.new(SECRET, f"{seconds}.".encode() + body, hashlib.sha256)
        assert mac == expected.hexdigest()
        assert SECRET not in body


def test_attempts_are_bounded_and_a_4xx_is_final(stack):
    busy = stack.enter_context(closing(Reader(503, 429, 200)))
    assert send(stack, busy, EVICTED).sent == 1
    assert len(busy.heard) == 3
    assert len({body for _, body, _ in busy.heard}) == 1, "the same notice, by its id"
    never = stack.enter_context(closing(Reader(500)))
    hook = send(stack, never, EVICTED)
    assert (hook.sent, hook.lost, len(never.heard)) == (0, 1, webhook.ATTEMPTS)
    gone = stack.enter_context(closing(Reader(404)))
    assert send(stack, gone, EVICTED).lost == 1
    assert len(gone.heard) == 1


@pytest.mark.forgery
def test_a_redirect_is_not_followed(stack):
    inner = stack.enter_context(closing(Reader(200)))
    outer = stack.enter_context(closing(Reader(307, headers=[("Location", inner.url)])))
    hook = send(stack, outer, EVICTED)
    assert hook.lost == 1
    assert hook.problem == "status 307"
    assert inner.heard == []


@pytest.mark.forgery
@items("address", "169.254.169.254", "fe80::1", "0.0.0.0", "::ffff:169.254.169.254", "127.0.0.1")
def test_a_name_that_leads_to_metadata_or_here_is_not_asked(stack, monkeypatch, address):
    """The name server lies, also after the first question."""
    asked = []

    def resolve(*_, **__):
        asked.append(1)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443))]

    def connect(*_, **__):
        raise AssertionError("connected")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", connect)
    hook = Webhook(Target.of("https://hooks.example/x"), SECRET, "job-1", lambda: NOW, pause=0.001)
    hook.take(EVICTED)
    hook.stop(60)
    assert hook.lost == 1
    assert len(asked) == webhook.ATTEMPTS


@pytest.mark.forgery
def test_a_server_without_a_certificate_that_verifies_hears_nothing(stack, tmp_path):
    plain = stack.enter_context(closing(Reader(200)))
    target = Target(True, "localhost", plain.server_address[1], "/hook")
    hook = Webhook(
        target, SECRET, "job-1", lambda: NOW, trust=ssl.create_default_context(), pause=0.001
    )
    hook.take(EVICTED)
    hook.stop(60)
    assert hook.lost == 1
    assert plain.heard == []


def test_nobody_waits_for_a_webhook_that_does_not_answer(stack):
    """It takes the connection and says nothing; 10,000 refusals go by meanwhile."""
    silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
    hook = Webhook(Target.of(url), SECRET, "job-1", lambda: NOW)
    for _ in range(10_000):
        hook.take(REFUSED)
    hook.take(EVICTED)
    assert 1 < hook._queue.qsize() <= 2 * PER_MINUTE + 1, "a flood leaves room for a bar"
    hook.stop(0.01)


BAD = [
    "http://hooks.example/x",
    "ftp://127.0.0.1/",
    "https://user:hunter2@hooks.example/",
    "https://",
    "https://hooks.example/#x",
    "https://hooks.example:x/",
    "https://hooks.example/a b",
    "https://hooks.example/\r\nX: y",
    "file:///etc/passwd",
]


@pytest.mark.parametrize("url", BAD)
def test_an_address_that_is_none(url, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    error = vocabulary.refused(
        UsageError, "ST-USAG-001", Watchers, "job-1", lambda: NOW, webhook=url, secret=secret
    )
    assert "hunter2" not in str(error)


def test_a_secret_that_is_short_open_or_missing(tmp_path):
    def watch(**how):
        return vocabulary.refused(UsageError, "ST-USAG-001", Watchers, "job-1", lambda: NOW, **how)

    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o644)
    watch(webhook="https://hooks.example/", secret=secret)
    secret.chmod(0o600)
    secret.write_bytes(b"short")
    watch(webhook="https://hooks.example/", secret=secret)
    watch(webhook="https://hooks.example/")
    watch(secret=secret)


def test_kinds():
    assert kind_of(EVICTED) == "bar"
    assert kind_of(LATE) == "refusal"
    assert kind_of(line(events.NodeLeft(subject="node-0"))) == ""


# Figures.


def test_figures_are_served_and_name_nobody(stack):
    watchers = Watchers("job-1", lambda: NOW, metrics="0")
    stack.callback(watchers.stop)
    assert watchers.metrics.startswith("127.0.0.1:")
    for one in (
        line(events.NodeAdmitted(subject="node-0", tier=NodeTier.TPM)),
        line(events.NodeAdmitted(subject="node-5", tier=NodeTier.TPM)),
        REFUSED,
        EVICTED,
        line(events.FleetStateOpened(subject="x", version=7, barred=3)),
    ):
        watchers.take(one)
    with urlopen(f"http://{watchers.metrics}/metrics") as answer:
        page = answer.read().decode()
    assert 'securetrain_coordinator_nodes_admitted_total{tier="tpm"} 2' in page
    assert 'securetrain_coordinator_nodes_evicted_total{code="ST-ATTS-008"} 1' in page
    assert "securetrain_coordinator_nodes 1\n" in page
    assert "securetrain_coordinator_fleet_version 7\n" in page
    assert "node-" not in page
    assert "job-1" not in page
    for name in {row.split("{")[0].split(" ")[0] for row in page.splitlines() if row[0] != "#"}:
        assert f"# TYPE {name} " in page
    refused(HTTPError, "404", urlopen, f"http://{watchers.metrics}/")


def test_a_reader_that_says_nothing_keeps_nobody_else_out(stack):
    watchers = Watchers("job-1", lambda: NOW, metrics="0")
    stack.callback(watchers.stop)
    host, _, port = watchers.metrics.rpartition(":")
    stack.enter_context(socket.create_connection((host, int(port))))
    with urlopen(f"http://{watchers.metrics}/metrics", timeout=60) as answer:
        assert answer.status == 200


def test_what_is_no_event_is_not_counted():
    figures = Figures()
    before = figures.page()
    figures.take(REFUSED.__class__(**{**fields(REFUSED), "code": "x" * 5, "event": "other"}))
    assert figures.page() == before


def fields(event):
    return {name: getattr(event, name) for name in event.__struct_fields__}


@pytest.mark.parametrize("text", ["x", "1:x", "127.0.0.1:99999", ":"])
def test_an_address_of_figures_that_is_none(text):
    vocabulary.refused(UsageError, "ST-USAG-001", Watchers, "job-1", lambda: NOW, metrics=text)


def test_an_address_that_is_taken(stack):
    taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = str(taken.getsockname()[1])
    vocabulary.refused(UsageError, "ST-USAG-003", Watchers, "job-1", lambda: NOW, metrics=port)
