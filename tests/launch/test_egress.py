# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The way out of a job network, attacked from inside: to named places, checked addresses only."""

import contextlib
import ipaddress
import socket
import threading
from datetime import UTC, datetime

import pytest

from securetrain.core.errors import NetworkError, PolicyError
from securetrain.core.vocabulary import OPEN_EGRESS, NetworkProfile
from securetrain.launch.network import egress
from securetrain.launch.network.egress import EgressProxy, Limits, is_public, parse_request
from securetrain.launch.network.jobnetwork import egress_label
from securetrain.ledger import events, read_ledger
from securetrain.policy import load_policy
from securetrain.report.run.record import read_run
from securetrain.testing.runs import make_run
from tests.launch.worlds import write_policy
from tests.tables import items
from tests.vocabulary import refused
from tests.waiting import until

PUBLIC = "93.184.216.34"


@pytest.fixture
def made(tmp_path):
    return make_run(tmp_path / "run")


class Upstream(list[tuple[str, int]]):
    """A server that sends what it gets back, and the places in whose stead it was connected to."""

    def __init__(self, server):
        super().__init__()
        self.server = server
        threading.Thread(target=self.accept, daemon=True).start()

    def connect(self, place, timeout):
        self.append(place)
        return socket.create_connection(self.server.getsockname(), timeout)

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.server.accept()
                threading.Thread(target=answer, args=(client,), daemon=True).start()


@pytest.fixture
def upstream():
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        yield Upstream(server)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


CLIENTS = contextlib.ExitStack()


@pytest.fixture(autouse=True)
def _closed():
    yield
    CLIENTS.close()


def listen(address):
    return socket.create_server((address, 0), backlog=128)


def answer(client):
    with client, contextlib.suppress(OSError):
        while data := client.recv(4096):
            client.sendall(data)


@pytest.fixture
def proxy(made, upstream):
    """Makes proxies whose names have the given addresses."""
    running = []

    def start(*allowed, addresses=(PUBLIC,), limits=None, connect=None):
        found = EgressProxy(
            allowed=frozenset(allowed),
            ledger=made.ledger(),
            resolve=lambda *_: addresses,
            limits=limits or Limits(request=2, connect=2, silence=5),
            connect=connect or upstream.connect,
        )
        url = found.start(listen)
        running.append(found)
        return found, int(url.rpartition(":")[2])

    yield start
    for one in running:
        one.stop()


def ask(port, request, more=b""):
    """Send a request; returns the status and the connection."""
    client = CLIENTS.enter_context(socket.socket())
    client.settimeout(20)
    client.connect(("127.0.0.1", port))
    client.sendall(request.encode("latin-1") + more)
    head = b""
    while b"\r\n\r\n" not in head:
        data = client.recv(4096)
        if not data:
            break
        head += data
    return (int(head.split()[1]) if head else 0), client


def connect_to(port, place, **headers):
    lines = [f"CONNECT {place} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
    return ask(port, "\r\n".join([*lines, "", ""]))


def said(made):
    return list(read_ledger(made.run_dir.ledger.read_bytes(), made.trust).events[1:])


def refusals(made):
    return [e.code for e in said(made) if isinstance(e, events.EgressRefused)]


def test_a_named_place_is_reached_and_counted(proxy, made, upstream):
    running, port = proxy("hub.example:443")
    status, client = connect_to(port, "hub.example:443", Host="hub.example:443")
    assert status == 200
    client.sendall(b"x" * 1000)
    got = b""
    while len(got) < 1000:
        got += client.recv(4096)
    client.close()
    assert upstream == [(PUBLIC, 443)]
    until(lambda: running.counts["hub.example:443"].received == 1000)
    running.stop()
    assert said(made) == [
        events.EgressConnected(subject="hub.example:443", address=PUBLIC),
        events.EgressCounted(
            subject="hub.example:443", connections=1, refused=0, sent=1000, received=1000
        ),
    ]


def test_names_have_no_case(proxy):
    _, port = proxy("hub.example:443")
    assert connect_to(port, "HUB.example:443")[0] == 200


@items(
    "place",
    "evil.example:443",
    "hub.example:80",
    "hub.example.:443",
    "sub.hub.example:443",
    f"{PUBLIC}:443",
    "hub.example:0443",
    "hub.example@evil.example:443",
    "hub.example:443@evil.example:443",
    "hub.example:443#:443",
    "hub.example%00.evil.example:443",
    "169.254.169.254:80",
    "127.0.0.1:22",
    "[::1]:443",
    "localhost:443",
    "hub.example",
    ":443",
    "hub.example:99999",
)
def test_what_the_policy_does_not_name_is_refused(proxy, made, upstream, place):
    _, port = proxy("hub.example:443")
    assert connect_to(port, place)[0] == 403
    assert refusals(made) == ["ST-NETW-040"]
    assert upstream == []


INSIDE = [
    "169.254.169.254",
    "127.0.0.1",
    "10.0.0.1",
    "192.168.1.1",
    "172.16.0.1",
    "100.64.0.1",
    "0.0.0.0",
    "255.255.255.255",
    "224.0.0.1",
    "::1",
    "fe80::1",
    "fd00:ec2::254",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", INSIDE)
def test_a_name_that_leads_inside_is_refused(proxy, made, upstream, address):
    """A name that is bound again to the metadata service, or to another machine of the site."""
    _, port = proxy("hub.example:443", addresses=(address,))
    assert connect_to(port, "hub.example:443")[0] == 403
    assert refusals(made) == ["ST-NETW-041"]
    assert upstream == []
    assert not is_public(ipaddress.ip_address(address))


def test_one_address_inside_is_enough(proxy, made, upstream):
    _, port = proxy("hub.example:443", addresses=(PUBLIC, "169.254.169.254"))
    assert connect_to(port, "hub.example:443")[0] == 403
    assert refusals(made) == ["ST-NETW-041"]
    assert upstream == []


def test_the_checked_address_is_the_one_that_is_used(made, upstream):
    """The name answers with another address the second time it is asked."""
    answers = iter([[PUBLIC], ["169.254.169.254"]])
    running = EgressProxy(
        allowed=frozenset({"hub.example:443"}),
        ledger=made.ledger(),
        resolve=lambda *_: next(answers),
        connect=upstream.connect,
    )
    port = int(running.start(listen).rpartition(":")[2])
    try:
        assert connect_to(port, "hub.example:443")[0] == 200
        assert upstream == [(PUBLIC, 443)]
        assert connect_to(port, "hub.example:443")[0] == 403
        assert upstream == [(PUBLIC, 443)]
    finally:
        running.stop()


def test_an_address_that_the_policy_names_itself(proxy, upstream):
    _, port = proxy("10.1.2.3:9000", "[fd00::1]:9000")
    assert connect_to(port, "10.1.2.3:9000")[0] == 200
    assert connect_to(port, "[fd00::1]:9000")[0] == 200
    assert upstream == [("10.1.2.3", 9000), ("fd00::1", 9000)]


@items(
    "place, addresses",
    ("hub.example:443", (PUBLIC,)),
    (f"{PUBLIC}:443", ()),
    ("inner.example:443", ("10.1.2.3",)),
)
def test_any_public_address(proxy, upstream, place, addresses):
    """A name of an inner address passes when that address is named itself, as its port is."""
    _, port = proxy("*:443", "10.1.2.3:443", addresses=addresses)
    assert connect_to(port, place)[0] == 200
    assert len(upstream) == 1


@items(
    "place, address, fix",
    ("hub.example:444", PUBLIC, "--egress hub.example:444"),
    ("10.1.2.3:443", "", "--egress 10.1.2.3:443"),
    ("[fd00::1]:443", "", "--egress '[fd00::1]:443'"),
    *(
        ("hub.example:443", address, f"--egress hub.example:443 --egress {named}:443")
        for address, named in (
            *((a, a) for a in ("127.0.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0")),
            *((a, f"'[{a}]'"[:-1]) for a in ("::1", "fe80::1", "fd00:ec2::254", "64:ff9b::7f00:1")),
        )
    ),
)
def test_any_public_address_is_no_other(proxy, upstream, place, address, fix):
    """And the end of the run says what would let it pass."""
    running, port = proxy("*:443", addresses=(address,))
    assert connect_to(port, place)[0] == 403
    assert upstream == []
    (line,) = egress.WayOut(proxy=running).at_end()
    assert line.startswith(f"egress       refused {place}: {fix}")


@items(
    "request_text",
    "GET http://hub.example/ HTTP/1.1\r\nHost: hub.example\r\n\r\n",
    "POST hub.example:443 HTTP/1.1\r\n\r\n",
    "CONNECT hub.example:443 HTTP/2\r\n\r\n",
    "CONNECT  hub.example:443 HTTP/1.1\r\n\r\n",
    "CONNECT hub.example:443\r\n\r\n",
    "CONNECT hub.example:443 HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "CONNECT hub.example:443 HTTP/1.1\r\nContent-Length: 4\r\n\r\n",
    "CONNECT hub.example:443 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "CONNECT hub.example:443 HTTP/1.1\r\nX: a\r\n folded\r\n\r\n",
    "CONNECT hub.example:443 HTTP/1.1\nHost: evil.example\r\n\r\n",
    "CONNECT hub.example:443 HTTP/1.1\r\nX : a\r\n\r\n",
    "CONNECT hub.ex\xe4mple:443 HTTP/1.1\r\n\r\n",
    "CONNECT hub.example:443 HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    "CONNECT hub.example:443 HTTP/1.1\r\n\r\n\x16\x03\x01",
    "CONNECT hub.example:443 HTTP/1.1\r\n\r\nCONNECT evil.example:443 HTTP/1.1\r\n\r\n",
    "\r\n\r\n",
    "CONNECT " + "a" * 9000,
)
def test_another_request_is_refused(proxy, made, upstream, request_text):
    """Plain requests, and requests that two readers would read in two ways."""
    _, port = proxy("hub.example:443")
    assert ask(port, request_text)[0] == 403
    assert refusals(made) == ["ST-NETW-040"]
    assert upstream == []


def test_who_sends_slowly_is_not_waited_for(proxy, made):
    _, port = proxy("hub.example:443", limits=Limits(request=0.3))
    with socket.create_connection(("127.0.0.1", port), 20) as slow:
        slow.sendall(b"CONNECT hub")
        assert slow.recv(100).startswith(b"HTTP/1.1 403")
    until(lambda: refusals(made) == ["ST-NETW-040"])


def test_a_silent_connection_ends(proxy):
    _, port = proxy("hub.example:443", limits=Limits(silence=0.3))
    status, client = connect_to(port, "hub.example:443")
    assert status == 200
    assert client.recv(10) == b""


def test_many_connections_keep_nobody_out_for_long(proxy, made, monkeypatch):
    monkeypatch.setattr(egress, "RECORDED", 50)
    running, port = proxy("hub.example:443")
    for _ in range(1000 // 4):
        status, client = connect_to(port, "evil.example:443")
        client.close()
        assert status in {403, 503}
    until(lambda: connect_to(port, "hub.example:443")[0] == 200)
    running.stop()
    assert len(refusals(made)) == 50, "the ledger stays readable"
    counted = {e.subject: e.refused for e in said(made) if isinstance(e, events.EgressCounted)}
    assert counted["not named"] >= 200


def test_more_than_the_slots_are_turned_away(proxy, monkeypatch):
    monkeypatch.setattr(egress, "CONNECTIONS", 4)
    _, port = proxy("hub.example:443")
    held = [connect_to(port, "hub.example:443") for _ in range(4)]
    assert [status for status, _ in held] == [200] * 4
    assert connect_to(port, "hub.example:443")[0] == 503
    held[0][1].close()
    until(lambda: connect_to(port, "hub.example:443")[0] == 200)


def test_a_place_that_does_not_answer(proxy, made):
    def refuse(*_):
        raise ConnectionRefusedError(111, "Connection refused")

    _, port = proxy("hub.example:443", connect=refuse)
    assert connect_to(port, "hub.example:443")[0] == 502
    assert said(made) == []


@pytest.mark.parametrize("place", ["hub.example:443", "10.0.0.1:9000", "[fd00::1]:1", "*:443"])
def test_the_policy_takes_places(tmp_path, place):
    assert policy_with(tmp_path, place).network.egress == (place,)


@items(
    "place",
    *("*", "*:*", "*:0", "*.example:443", "hub.example", "hub.example:0", "hub.example:65536"),
    *("HUB.example:1", "https://hub.example:443", "hub.example:443/x", "a b:1", ":443"),
    "hub.example:443\n",
)
def test_the_policy_takes_no_patterns(tmp_path, place):
    refused(PolicyError, "ST-PLCY-002", policy_with, tmp_path, place)


@pytest.mark.parametrize("profile", [NetworkProfile.LOOPBACK, NetworkProfile.STORE_TLS])
def test_a_limit_that_nothing_enforces_is_said(tmp_path, profile):
    network = policy_with(tmp_path, "hub.example:443").network
    assert egress_label(network, profile).startswith(OPEN_EGRESS)
    assert egress_label(network, NetworkProfile.OVERLAY) == ""
    assert egress_label(load_policy("baseline").policy.network, profile) == ""


@pytest.mark.dist
@pytest.mark.parametrize("ends", [pytest.param(0, marks=pytest.mark.many), 3])
def test_a_run_says_it_at_its_start_and_end_in_its_ledger_and_report(tmp_path, launch, ends):
    """A worker reaches whom it likes; that it may is on record wherever somebody looks."""
    policy_with(tmp_path, "hub.example:443", host={"sandbox": "off"})
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(1)
        script = f"import socket, sys\nsocket.create_connection({elsewhere.getsockname()!r})\n"
        (tmp_path / "train.py").write_text(script + f"sys.exit({ends})\n")
        policy = ["--policy", str(tmp_path / "policy.yaml"), "--require", "loopback"]
        done = launch(tmp_path / "run", *policy, str(tmp_path / "train.py"))
        elsewhere.accept()[0].close()
    assert bool(done.code) == bool(ends), done.err
    assert done.err.count(f"egress       {OPEN_EGRESS}: under loopback") == 2, done.err
    (event,) = done.events("egress-unlimited")
    assert event.details["places"] == "hub.example:443"
    assert done.summary["egress"].startswith(OPEN_EGRESS)
    record = read_run(done.run.root, datetime.now(UTC))
    assert OPEN_EGRESS in {label for view in record.boundaries for label in view.labels}
    assert ("egress", done.summary["egress"]) in {(f.name, f.value) for f in record.facts}
    assert any("The way out was open" in line for line in record.limits)


def test_a_run_with_a_way_out_is_labelled():
    assert events.EgressOpened(places="hub.example:443").labels == ("EGRESS",)


def test_a_request_is_parsed_once():
    assert parse_request(b"CONNECT A:1 HTTP/1.0\r\nHost: a\r\n\r\n") == ("a:1", "a", 1)
    with pytest.raises(NetworkError):
        parse_request(b"CONNECT a:1 HTTP/1.1\r\nHost: b\r\n\r\n")


def policy_with(tmp_path, place, **sections):
    path = write_policy(tmp_path / "policy.yaml", network={"egress": [place]}, **sections)
    return load_policy(path).policy
