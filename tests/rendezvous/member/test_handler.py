# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The torchelastic handler and the workers' store, in this process."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from securetrain.core.errors import AdmissionError, IdentityError, NetworkError, UsageError
from securetrain.drills.tcpstore_client import NotAStoreError, StoreClient
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.spiffe import Role
from securetrain.network.kernel_sockets import own_listeners, require_only
from securetrain.rendezvous.member import handler as handler_module
from securetrain.rendezvous.member import identity_dir
from securetrain.rendezvous.member.handler import as_rendezvous_error
from securetrain.rendezvous.member.identity_dir import load_identity, store_identity
from securetrain.rendezvous.member.round import SpareNodeError
from securetrain.rendezvous.member.store import connect_store, host_store
from tests.tables import each, items
from tests.vocabulary import refused

_SOON = timedelta(seconds=10)


@pytest.fixture
def handlers(job):
    made: list[Any] = []

    def make(node="node-0", nodes=(1, 1), **config):
        folder = job.folder(node)
        if not folder.exists():
            job.identity(node)
        config = {"identity": str(folder), **config}
        parameters = RendezvousParameters(
            backend="securetrain",
            endpoint=f"{job.host}:{job.port}",
            run_id=config.pop("run_id", job.name),
            min_nodes=nodes[0],
            max_nodes=nodes[1],
            **config,
        )
        made.append(get_rendezvous_handler(parameters))
        return made[-1]

    yield make
    for handler in made:
        if handler.member is not None:
            handler.member.leave()


def test_a_plain_tcpstore_answers_everybody_on_every_address():
    """The control: what torch does by itself, and what our check says about it."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("secret", "gradient")
    with StoreClient("127.0.0.2", store.port) as stranger:
        stranger.hello()
        assert stranger.ping()
        assert "/secret" in stranger.list_keys()
        assert stranger.get("/secret") == b"gradient"
        stranger.set("/secret", b"poison")
        assert stranger.num_keys() >= 1
    assert store.get("secret") == b"poison"
    refused(NetworkError, "ST-NETW-002", require_only, "127.0.0.1", store.port)


def test_our_store_listens_on_one_address():
    hosted = host_store("127.0.0.1", _SOON)
    assert {e.address for e in own_listeners() if e.port == hosted.port} == {"127.0.0.1"}
    with pytest.raises(ConnectionRefusedError):
        StoreClient("127.0.0.2", hosted.port)
    client = connect_store("127.0.0.1", hosted.port, _SOON)
    client.set("k", "v")
    assert hosted.store.get("k") == b"v"


def test_one_node(job, handlers):
    job.start()
    handler = handlers()
    before = {(e.address, e.port) for e in own_listeners()}
    found = handler.next_rendezvous()
    assert (found.rank, found.world_size) == (0, 1)
    assert handler.use_agent_store
    assert handler.get_backend() == "securetrain"
    assert handler.get_run_id() == "job-1"
    assert handler.num_nodes_waiting() == 0
    assert not handler.is_closed()
    where = found.bootstrap_store_info
    assert {(e.address, e.port) for e in own_listeners()} - before == {
        ("127.0.0.1", where.master_port)
    }
    found.store.set("key", "value")
    with StoreClient(where.master_addr, where.master_port) as local:
        local.hello()
        assert local.get(f"/securetrain/{0}/key") == b"value"
    assert handler.shutdown()
    assert handler.is_closed()


def test_two_nodes_share_the_store_and_each_round_is_fresh(job, handlers):
    job.start(2, 2)
    both = [handlers(f"node-{n}", (2, 2)) for n in range(2)]
    with ThreadPoolExecutor(2) as pool:
        first = list(pool.map(lambda h: h.next_rendezvous(), both))
        assert [info.rank for info in first] == [0, 1]
        first[1].store.set("old", "round")
        assert first[0].store.get("old") == b"round"
        second = list(pool.map(lambda h: h.next_rendezvous(), both))
    ports = {info.bootstrap_store_info.master_port for info in second}
    assert len(ports) == 1
    assert ports != {first[0].bootstrap_store_info.master_port}
    assert not second[1].store.check(["old"])


def test_who_ends_first_stays_until_the_others_have_read_from_its_store(job, handlers, tools):
    """The first one's store and tunnel go with it; who waits through them would hear nothing."""
    job.start(3, 3)
    members = [handlers(f"node-{n}", (3, 3)) for n in range(3)]
    with ThreadPoolExecutor(3) as pool:
        infos = list(pool.map(lambda h: h.next_rendezvous(), members))
        ends = [pool.submit(members[0].shutdown)]
        tools.wait_until(members[1].is_closed, "the job is closed")
        ends.append(pool.submit(members[2].shutdown))
        tools.wait_until(lambda: members[2].member._status.unfinished < 3, "that is known")
        assert not any(end.done() for end in ends)
        infos[0].store.set("last", "word")
        assert infos[1].store.get("last") == b"word"
        ends.append(pool.submit(members[1].shutdown))
        assert [end.result(60) for end in ends] == [True, True, True]
    assert not any(handler.member.connected for handler in members)


@pytest.mark.parametrize("how", ["leaves", "is evicted"])
def test_who_is_gone_is_not_waited_for(job, handlers, how, monkeypatch):
    monkeypatch.setattr(handler_module, "LINGER_SECONDS", 3600)
    coordinator = job.start(2, 2)
    both = [handlers(f"node-{n}", (2, 2)) for n in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda h: h.next_rendezvous(), both))
        end = pool.submit(both[0].shutdown)
        if how == "leaves":
            both[1].member.leave()
        else:
            coordinator._nodes["node-1"].evict(AdmissionError("ST-ADMN-013", "a test"))
        assert end.result(60)


def test_who_does_not_end_is_not_waited_for_for_ever(job, handlers, monkeypatch, caplog):
    monkeypatch.setattr(handler_module, "LINGER_SECONDS", 0)
    job.start(2, 2)
    both = [handlers(f"node-{n}", (2, 2)) for n in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda h: h.next_rendezvous(), both))
    assert both[0].shutdown()
    assert "have not ended" in caplog.text


def test_a_closed_job(job, handlers):
    job.start(1, 2, last_call=0)
    one, late = handlers("node-0", (1, 2)), handlers("node-1", (1, 2))
    one.next_rendezvous()
    one.set_closed()
    assert one.is_closed()
    refused(RendezvousClosedError, "ST-ADMN-008", one.next_rendezvous)
    error = refused(RendezvousClosedError, "ST-ADMN-008", late.next_rendezvous)
    assert isinstance(error.__cause__, AdmissionError)


def test_too_few_nodes(job, handlers):
    job.start(2, 2)
    with pytest.raises(RendezvousTimeoutError, match="ST-ADMN-005"):
        handlers(nodes=(2, 2), join_timeout="1").next_rendezvous()


def test_no_coordinator(job, handlers):
    job.host, job.port = "127.0.0.1", 1
    refused(RendezvousConnectionError, "ST-ADMN-007", handlers().next_rendezvous)


def test_the_coordinator_dies(job, handlers, tools, caplog):
    coordinator = job.start()
    handler = handlers()
    handler.next_rendezvous()
    coordinator.stop()
    tools.wait_until(lambda: not handler.member.connected, "it notices")
    refused(RendezvousConnectionError, "ST-ADMN-007", handler.num_nodes_waiting)
    assert not handler.shutdown(), "nobody could be told"
    assert "could not be closed" not in caplog.text, "the same error is not said twice"


def test_other_numbers_of_nodes_than_the_coordinators(job, handlers):
    job.start(1, 1)
    refused(RendezvousConnectionError, r"--nnodes 1:1", handlers(nodes=(1, 2)).next_rendezvous)


def test_before_the_first_round_nobody_waits(job, handlers):
    job.start()
    handler = handlers()
    assert handler.num_nodes_waiting() == 0
    assert not handler.is_closed()
    assert handler.shutdown()
    assert handler.is_closed()


@items(
    "config, what",
    ({"identity": ""}, "no identity"),
    ({"token": "hunter2"}, "unknown setting 'token'"),
    ({"local_world": "two"}, "local_world"),
    ({"last_call_timeout": "3"}, "are the coordinator's"),
    ({"join_timeout": "0"}, "above 0"),
    ({"tunnel": "mine"}, "nothing that can be written"),
    ({"on_epoch": "rm"}, "nothing that can be written"),
    ({"run_id": "job-2"}, "the identity is for job job-1"),
)
def test_bad_settings(job, handlers, config, what):
    job.start()
    error = refused(UsageError, what, handlers, **config)
    assert "hunter2" not in str(error), "a value may be a secret that does not belong here"


@pytest.mark.parametrize("endpoint", ["", "host", "host:", "host:x", "host:0", "host:70000", ":1"])
def test_bad_endpoints(job, endpoint):
    job.identity()
    parameters = RendezvousParameters(
        "securetrain", endpoint, job.name, 1, 1, identity=str(job.folder())
    )
    refused(UsageError, "--rdzv-endpoint", get_rendezvous_handler, parameters)


def old_identity(job, tools):
    """More than half of its life is over."""
    key = PrivateKey.generate(KeyKind.P256)
    begins = tools.now() - timedelta(minutes=40)
    leaf = job.ca.issue(Role.NODE, key.public, begins, node="old", lifetime=timedelta(hours=1))
    return store_identity(job.folder("old"), key, leaf, job.ca.certificate, tools.now())


def test_a_renewed_certificate_is_kept_beside_its_key(job, tools, handlers):
    job.start()
    before = old_identity(job, tools)
    handlers("old").next_rendezvous()
    after = load_identity(job.folder("old"), tools.now())
    assert after.key.key_id == before.key.key_id
    assert after.certificate.not_valid_after_utc > before.certificate.not_valid_after_utc


def test_a_folder_that_cannot_be_written_is_a_warning(job, tools, handlers, monkeypatch, caplog):
    job.start()
    old_identity(job, tools)

    def refuse(folder, certificate):
        raise UsageError("ST-USAG-002", "read-only", str(folder))

    monkeypatch.setattr(identity_dir, "replace_certificate", refuse)
    assert handlers("old").next_rendezvous().rank == 0
    assert "the renewed certificate is not kept" in caplog.text


def test_a_bad_identity_is_refused_before_anything_is_connected(job, tmp_path):
    parameters = RendezvousParameters(
        "securetrain", "127.0.0.1:1", job.name, 1, 1, identity=str(tmp_path)
    )
    with pytest.raises((IdentityError, UsageError)):
        get_rendezvous_handler(parameters)


@each(
    "error, kind",
    (AdmissionError("ST-ADMN-008", "closed"), RendezvousClosedError),
    (SpareNodeError("ST-ADMN-008", "closed"), RendezvousGracefulExitError),
    (AdmissionError("ST-ADMN-005", "late"), RendezvousTimeoutError),
    (AdmissionError("ST-ADMN-006", "forged"), RendezvousStateError),
    (AdmissionError("ST-ADMN-009", "forged"), RendezvousStateError),
    (AdmissionError("ST-ADMN-002", "stranger"), RendezvousConnectionError),
    (NetworkError("ST-NETW-002", "everywhere"), RendezvousConnectionError),
)
def test_torchelastic_gets_the_errors_it_knows(error, kind):
    mapped = as_rendezvous_error(error)
    assert type(mapped) is kind
    assert error.code in str(mapped)


def test_a_stranger_is_told_apart_from_a_store(job):
    job.start()
    with StoreClient(job.host, job.port) as client:
        client.hello()
        with pytest.raises(NotAStoreError):
            client.list_keys()
    job.expect("ST-ADMN-002")


# With a member that connects to nobody.


class FakeMember:
    """What the handler asked of it, in order."""

    def __init__(self, *, connected=True, closed=False, error=None):
        self.connected, self.closed, self.error = connected, closed, error
        self.terms = SimpleNamespace(min_nodes=1, max_nodes=1)
        self.asked: list[str] = []

    def _ask(self, what):
        self.asked.append(what)
        if self.error is not None:
            raise self.error

    @property
    def num_waiting(self):
        self._ask("num_waiting")
        return 2

    def next_round(self, *_):
        self._ask("next_round")

    def close_job(self):
        self._ask("close_job")

    def await_others(self, _):
        self.asked.append("await_others")
        return True

    def leave(self):
        self.asked.append("leave")


SPENT = AdmissionError("ST-ADMN-010", "spent")


def handler_of(member=None, **nodes):
    def connect():
        assert member is not None
        return member

    nodes = {"min_nodes": 1, "max_nodes": 1} | nodes
    made = handler_module.SecureRendezvousHandler(connect, run_id="job-1", **nodes)
    if member is not None and nodes == {"min_nodes": 1, "max_nodes": 1}:
        made._joined()
    return made


@each("closed", False, True)
def test_a_job_is_closed_when_this_node_or_another_has_closed_it(closed):
    assert not handler_of().is_closed()
    assert handler_of(FakeMember(closed=closed)).is_closed() is closed
    handler = handler_of(FakeMember())
    handler.set_closed()
    assert handler.is_closed()


@each(
    "connected, closed, heard",
    (True, False, True),
    (True, True, True),
    (False, False, True),
    (False, True, False),
)
def test_closing_is_said_unless_nobody_is_there_to_hear_it(connected, closed, heard):
    """Also when another node has closed the job; not when that is why the connection ended."""
    member = FakeMember(connected=connected, closed=closed)
    handler = handler_of(member)
    handler.set_closed()
    assert member.asked == (["close_job"] if heard else [])


def test_closing_is_said_once():
    member = FakeMember()
    handler = handler_of(member)
    handler.set_closed()
    handler.set_closed()
    assert member.asked == ["close_job"]
    unjoined = handler_of()
    unjoined.set_closed()
    assert unjoined.is_closed()
    assert unjoined.shutdown(), "there is nobody to wait for"


def test_who_has_closed_the_job_gets_no_more_rounds():
    member = FakeMember()
    handler = handler_of(member)
    handler.set_closed()
    refused(RendezvousClosedError, "this node has closed the job", handler.next_rendezvous)
    assert "next_round" not in member.asked


def test_what_a_member_is_refused_with_is_an_error_that_torch_knows():
    for ask in ("next_rendezvous", "num_nodes_waiting", "set_closed"):
        handler = handler_of(FakeMember(error=SPENT))
        error = refused(RendezvousConnectionError, "ST-ADMN-010", getattr(handler, ask))
        assert error.__cause__ is SPENT


def test_a_shutdown_closes_waits_and_leaves():
    member = FakeMember()
    handler = handler_of(member)
    assert handler.shutdown()
    assert member.asked == ["close_job", "await_others", "leave"]


@pytest.mark.parametrize("told", [False, True])
def test_a_shutdown_that_cannot_close_leaves_and_says_so_once(caplog, told):
    member = FakeMember(error=SPENT)
    handler = handler_of(member)
    if told:
        with pytest.raises(RendezvousConnectionError):
            handler.num_nodes_waiting()
    assert not handler.shutdown()
    assert member.asked[-2:] == ["close_job", "leave"]
    assert ("could not be closed" in caplog.text) is not told


def test_who_was_started_for_other_numbers_leaves_again():
    member = FakeMember()
    with pytest.raises(RendezvousConnectionError, match=r"was started for 1:4 nodes") as caught:
        handler_of(member, max_nodes=4).next_rendezvous()
    assert isinstance(caught.value.__cause__, UsageError)
    assert member.asked == ["leave"]
