# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Downloads within bounds, from a service on loopback; `test_get_and_post` is the control."""

import socket

import pytest

from securetrain.attest.fleet.download import Downloader
from securetrain.core.errors import AttestationError
from tests import vocabulary
from tests.attest.httpservice import serve
from tests.tables import each, items

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def service():
    with serve() as running:
        yield running


def refused(act, *arguments):
    error = vocabulary.refused(AttestationError, "ST-ATTS-741", act, *arguments)
    assert error.where
    return error.what


def test_get_and_post(service):
    service.routes = {"/a?b=c": (200, {"X-Chain": "1"}, b"data"), "/post": lambda body: body[::-1]}
    download = Downloader([service.origin])
    answer = download.get(f"{service.origin}/a?b=c", 4, {"Authorization": "x"})
    assert (answer.body, answer.headers["x-chain"]) == (b"data", "1")
    assert download.post(f"{service.origin}/post", b"abc", "a/b", 3).body == b"cba"
    assert service.asked == [("GET", "/a?b=c", b""), ("POST", "/post", b"abc")]
    assert service.headers[0]["Authorization"] == "x"
    assert service.headers[0]["User-Agent"] == "securetrain"
    assert service.headers[1]["Content-Type"] == "a/b"


def test_an_answer_without_a_length(service):
    service.routes = {"/": (200, {"Content-Length": ""}, b"x" * 200_000)}
    download = Downloader([service.origin])
    assert len(download.get(f"{service.origin}/", 200_000).body) == 200_000
    assert "more than 199999 bytes" in refused(download.get, f"{service.origin}/", 199_999)


def test_size(service):
    service.routes = {"/": b"12345"}
    download = Downloader([service.origin])
    assert download.get(f"{service.origin}/", 5).body == b"12345"
    assert "more than 4 bytes" in refused(download.get, f"{service.origin}/", 4)


@items(
    "answer",
    (404, {}, b"none"),
    (500, {}, b""),
    (204, {}, b""),
    (301, {"Location": "/good"}, b""),
    (302, {"Location": "http://127.0.0.1:1/"}, b""),
    (307, {"Location": "file:///etc/passwd"}, b""),
)
def test_other_answers_than_the_document(service, answer):
    service.routes = {"/": answer, "/good": b"data"}
    what = refused(Downloader([service.origin]).get, f"{service.origin}/", 100)
    assert what == f"it answered with status {answer[0]}"
    assert [path for _, path, _ in service.asked] == ["/"], "no redirect is followed"


def test_an_answer_that_is_cut_short(service):
    service.routes = {"/": (200, {"Content-Length": "9"}, b"1234")}
    what = refused(Downloader([service.origin]).get, f"{service.origin}/", 100)
    assert what == "4 of 9 bytes came"


def test_an_answer_that_takes_too_long(service):
    service.routes = {"/": b"data"}
    times = iter([0.0, 20.0, 0.0, 20.1])
    download = Downloader([service.origin], monotonic=lambda: next(times))
    download.get(f"{service.origin}/", 100)
    assert "within 20 s" in refused(download.get, f"{service.origin}/", 100)


def test_a_service_that_is_silent():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert "timed out" in refused(Downloader([origin], timeout=0.05).get, f"{origin}/", 9)


def test_a_service_that_is_not_there():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
    assert "refused" in refused(Downloader([origin]).get, f"{origin}/", 9)


def test_a_service_that_speaks_something_else():
    import threading

    with socket.create_server(("127.0.0.1", 0)) as listener:
        origin = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def speak():
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"SSH-2.0-x\r\n")

        thread = threading.Thread(target=speak)
        thread.start()
        refused(Downloader([origin]).get, f"{origin}/", 9)
        thread.join()


@each(
    "url",
    "https://elsewhere.example/x",
    "http://service.example/x",
    "https://service.example:8443/x",
    "https://service.example.evil.example/x",
    "https://service.example@evil.example/x",
    "https://user@service.example/x",
    "file:///etc/passwd",
    "ftp://service.example/x",
    "//service.example/x",
    "",
)
def test_only_named_origins_are_asked(url):
    what = refused(Downloader(["https://service.example"]).get, url or " ", 9)
    assert what == "the service is none of those that were named"


@each(
    "origin",
    "http://service.example",
    "https://service.example/",
    "https://service.example/path",
    "https://",
    "ftp://service.example",
    "service.example",
    "https://service.example?x",
    "http://127.0.0.1.evil.example",
)
def test_origins_that_are_none(origin):
    assert refused(Downloader, [origin]) == "not an https origin"


def test_proxies_of_the_environment(service, monkeypatch):
    service.routes = {"http://127.0.0.1:9/x": b"by proxy"}
    monkeypatch.setenv("http_proxy", service.origin)
    download = Downloader(["http://127.0.0.1:9"])
    assert download.get("http://127.0.0.1:9/x", 100).body == b"by proxy"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    refused(Downloader(["http://127.0.0.1:9"], timeout=1).get, "http://127.0.0.1:9/x", 100)
