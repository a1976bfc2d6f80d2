# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What holds in S3, Google Cloud Storage and Azure Blob alike, and the one way there."""

import os
import random
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from securetrain.artifacts import save, verify_path
from securetrain.artifacts.tree import egress, objects
from securetrain.artifacts.tree.layout import STATEMENT
from securetrain.artifacts.tree.objects import joined, part_name
from securetrain.artifacts.tree.storage import LocalStorage, storage_of
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from tests import s3_store
from tests.artifacts.checkpoint.worlds import context_of
from tests.artifacts.stores.conftest import SMALL, state
from tests.s3_store import KINDS, Fault
from tests.tables import items
from tests.vocabulary import refused
from tools.campaigns import objectstore

DATA = "rank-00000.bin"
EACH = pytest.mark.parametrize("s3", KINDS, indirect=True)


def flip(store, name, offset):
    data = bytearray(store.direct("GET", f"run/step-1/{name}"))
    data[offset % len(data)] ^= 4
    put(store, name, data)


def put(store, name, data):
    store.direct("PUT", f"run/step-1/{name}", bytes(data))


def cut(store, name):
    put(store, name, store.direct("GET", f"run/step-1/{name}")[:-1])


@EACH
def test_damage_is_refused(run, trust, now):
    """The control is the same checkpoint before and after, which loads."""
    for change, code in (
        (partial(flip, name=DATA, offset=3000), "ST-CKPT-130"),
        (partial(flip, name=f"{DATA}.leaves", offset=3), "ST-CKPT-132"),
        (partial(flip, name="index.json", offset=30), "ST-CKPT-132"),
        (partial(flip, name=STATEMENT, offset=40), "ST-CKPT-101"),
        (lambda s: s.direct("DELETE", f"run/step-1/{DATA}"), "ST-CKPT-140"),
        (lambda s: s.direct("DELETE", f"run/step-1/{STATEMENT}"), "ST-CKPT-100"),
        (partial(put, name="zzz.safetensors", data=b"x"), "ST-CKPT-141"),
        (partial(put, name="sub/dir/file", data=b"x"), "ST-CKPT-141"),
        (partial(put, name="RANK-00000.bin", data=b"x"), "ST-CKPT-142"),
        (partial(put, name=f"{DATA}.part-000001", data=b"x"), "ST-CKPT-131"),
        (partial(cut, name=DATA), "ST-CKPT-131"),
    ):
        run.store.empty()
        run.save(1)
        assert run.holds(1)
        change(run.store)
        found, target = run.load(1)
        assert found == code
        assert target["n"]["step"] == -1
        assert not verify_path(run.place(1), trust=trust, policy=None, now=now).ok


@EACH
def test_two_savers_at_one_name_and_one_wins(run):
    """Each begins while the other saves; what is there is whole, and is the winner's."""
    ready, ends = threading.Barrier(2), {}

    def saver(number):
        ready.wait()
        try:
            run.save(1, seed=number)
            ends[number] = ""
        except SecureTrainError as error:
            ends[number] = error.code

    threads = [threading.Thread(target=saver, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(ends.values()) == ["", "ST-CKPT-201"], ends
    assert run.holds(1, seed=next(number for number, code in ends.items() if not code))


def test_the_bytes_are_those_of_a_local_directory(run, keys, now, tmp_path):
    local = save(
        state(1), tmp_path / "c", key=keys.checkpoint, context=context_of(now, seq=1), params=SMALL
    )
    assert run.save(1).digest == local.digest


def test_what_is_hashed_is_what_is_used(run):
    """There is no second request for the same bytes, which a store could answer otherwise."""
    run.save(1)
    run.store.asked.clear()
    assert run.load(1)[0] == ""
    taken: list[int] = []
    for one in run.store.asked:
        if (one.name, one.method) == (DATA, "GET"):
            first, last = one.wanted.removeprefix("bytes=").split("-")
            taken += range(int(first), int(last) + 1)
    assert len(taken) == len(set(taken)) > 4 * 500 * 9


@EACH
def test_a_listing_of_many_answers(run, monkeypatch):
    """All of them, or none: one that never ends is given up."""
    place = storage_of(run.place(1))
    for number in range(5):
        put(run.store, f"{number}.bin", b"x")
    if run.store.memory:
        monkeypatch.setattr(run.store.memory, "page", 2)
    assert [one.name for one in place.survey()[0]] == [f"{n}.bin" for n in range(5)]
    monkeypatch.setattr(egress, "PAGES", 1)
    if run.store.memory:
        refused(OSError, "a listing of more than 1 answers", place.survey)


@given(st.dictionaries(st.sampled_from("abc"), st.integers(0, 4)), st.data())
def test_parts_are_joined_or_named(files, data):
    """A file of parts is one file; without one of them, the rest keep their names."""
    listed = [(part_name(name, n), 5) for name, last in files.items() for n in range(last + 1)]
    assert joined(listed) == {name: 5 * (last + 1) for name, last in files.items()}
    if len(listed) > 1:
        gone = data.draw(st.sampled_from(listed))
        left = [one for one in listed if one != gone]
        found = joined(left)
        assert sum(found.values()) == 5 * len(left)
        name, _, number = gone[0].partition(".part-")
        later = [part_name(name, n) for n in range(int(number or 0) + 1, files[name] + 1)]
        assert set(later) <= set(found)


@items(
    "url",
    *("http://h/x", "https://h/x", "ftp://h/x", "hf://m/x", "memory://b/x", "gcs://b/x"),
    *("abfs://b/x", "dir://x::file:///y", "nosuchscheme://x", "S3://b/x"),
)
def test_schemes_that_go_are_refused_by_name(url):
    error = refused(UsageError, "ST-USAG-001", storage_of, url)
    assert url.partition("://")[0] in error.what
    assert "s3://, gs://, az://" in error.fix
    assert isinstance(storage_of("a/b"), LocalStorage)


def test_what_is_local_needs_no_obstore(run, tmp_path):
    code = (
        "import sys; from securetrain.artifacts.tree.storage import storage_of\n"
        "import securetrain.cli.artifacts.verify; storage_of('a/b').exists()\n"
        "print(sorted({'obstore', 'fsspec', 'botocore'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.usefixtures("s3")
def test_random_faults_in_each_store(tmp_path, monkeypatch):
    """The first of the campaign, which draws what is done and what fails."""
    for module, name, value in objectstore._QUICKER:
        monkeypatch.setattr(module, name, value)
    for kind in KINDS:
        for variable, said in s3_store.environment(objectstore._store(kind)).items():
            monkeypatch.setenv(variable, said)
    for seed in range(2):
        (tmp_path / str(seed)).mkdir()
        words = objectstore.case(random.Random(seed), tmp_path / str(seed))
        assert len(words.split("; ")) >= len(KINDS)


# Rule 1: where requests go.


@items(
    "scheme, more, places",
    ("s3", {"AWS_METADATA_ENDPOINT": "http://169.254.169.254"}, 2),
    ("gs", {"GCE_METADATA_HOST": "metadata.google.internal"}, 2),
    ("az", {"AZURE_MSI_ENDPOINT": "http://169.254.169.254/metadata"}, 2),
    ("s3", {"AWS_ACCESS_KEY_ID": "x"}, 1),
)
def test_a_clouds_metadata_is_asked_when_it_is_named(s3, monkeypatch, *, scheme, more, places):
    for name in [n for n in os.environ if n.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    error = refused(UsageError, "ST-USAG-001", storage_of, f"{scheme}://bucket/x")
    assert next(iter(more)) in error.fix
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    assert len(objects._places(scheme)) == places


@items(
    "name, said, code",
    ("AWS_ENDPOINT_URL_S3", "https://", "ST-USAG-023"),
    ("AWS_ENDPOINT_URL_S3", "https://h:99999", "ST-USAG-023"),
    ("AWS_ENDPOINT_URL_S3", "https://a b", "ST-USAG-023"),
    ("AWS_SECRET_ACCESS_KEY", "", "ST-USAG-001"),
    ("AWS_CA_BUNDLE", "/nonexistent", "ST-USAG-001"),
    ("AWS_REGION", "eu\n", "OSError"),
)
def test_a_configuration_that_does_not_hold_together(s3, monkeypatch, *, name, said, code):
    """Where obstore panics, as it does of a region that no header can carry, it is an error."""
    with monkeypatch.context() as patch:
        patch.setenv(name, said)
        if not said:
            patch.delenv(name)
        s3_store.forget_clients()
        kind = OSError if code == "OSError" else UsageError
        why = "Invalid" if code == "OSError" else code
        refused(kind, why, lambda: storage_of("s3://bucket/x").exists())
    refused(UsageError, "ST-USAG-001", storage_of, "s3://B ucket/x")


def test_obstore_is_led_nowhere_else(run, monkeypatch):
    """It looks for credentials at the metadata's address when it has none; it does not arrive."""
    from obstore import store

    way = objects.requests_of("s3", "bucket").way
    options: Any = {"client_options": {"proxy_url": way.url}, "retry_config": {"max_retries": 0}}
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(Exception, match="is not where the configuration leads to"):
        store.S3Store("bucket", **options).head("x")


def test_only_this_process_is_served(run):
    way = objects.requests_of("s3", "bucket").way
    for path in ("/ask", f"{run.store.endpoint}/bucket/x"):
        with socket.create_connection(("127.0.0.1", way.server_port)) as asking:
            asking.sendall(f"POST {path} HTTP/1.1\r\nContent-Length: 0\r\n\r\n".encode())
            assert b"not a request of this process" in asking.makefile("rb").read()
    assert run.store.asked == []


def test_a_name_that_leads_to_a_link_local_address(monkeypatch):
    """The connection is made and looked at; the control is the same one at loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://localhost:{server.getsockname()[1]}"
        way = egress.Egress([url])
        way.take(url.removeprefix("http://")).close()
        monkeypatch.setattr(egress, "is_local", lambda host: (False, host == "127.0.0.1"))
        with pytest.raises(Exception, match="an address that no store has"):
            way.take(url.removeprefix("http://"))
        way.server_close()


@EACH
def test_an_answer_that_announces_a_terabyte(run, monkeypatch):
    """obstore alone would reserve it, and the process would end."""
    monkeypatch.setattr(objects, "TRIES", 2)
    run.save(1)
    run.store.fault = lambda _: Fault.ENDLESS
    assert run.load(1)[0] == "ST-CKPT-200"
    refused(OSError, "more than 8388608 bytes", storage_of(run.place(1)).survey)


@pytest.fixture
def tls(tmp_path):
    """A store of one answer by TLS, and the certificate of its authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    (tmp_path / "ca.pem").write_bytes(pem)
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (tmp_path / "both.pem").write_bytes(pem + text)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(200)
            for header in (("ETag", '"x"'), ("Content-Length", "7")):
                self.send_header(*header)
            self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
            self.end_headers()

        def log_message(self, *_):
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://localhost:{server.server_port}", tmp_path / "ca.pem"
    server.shutdown()
    server.server_close()


def test_a_store_by_tls_whose_certificate_is_checked(s3, tls, monkeypatch):
    url, authority = tls
    monkeypatch.setattr(objects, "TRIES", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
    s3_store.forget_clients()
    refused(OSError, "HTTP error", objects.requests_of("s3", "bucket").head, "x")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
    s3_store.forget_clients()
    assert objects.requests_of("s3", "bucket").head("x").size == 7


def test_the_environments_own_proxy_is_gone_through(s3, monkeypatch):
    """A proxy of the site, which sees where to; the store's name is not resolved here."""
    monkeypatch.setenv("http_proxy", s3.endpoint)
    monkeypatch.setattr(urllib.request, "proxy_bypass", lambda _: False)
    monkeypatch.setattr(egress, "proxy_bypass", lambda _: False)
    way = egress.Egress(["http://store.invalid:80"])
    with pytest.raises(OSError, match="Tunnel connection failed"):
        way.take("store.invalid:80")
    way.server_close()


# A process that was forked.


@EACH
def test_a_forked_reader_asks_through_its_parent(run):
    """obstore waits for ever in a forked child: reads go through the parent, writes are refused."""
    run.save(1)
    place = storage_of(run.place(1))
    wanted = run.store.direct("GET", f"run/step-1/{DATA}")
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            source = place.open(DATA)
            found = bytearray(source.size)
            source.read_into(memoryview(found), 0)
            words = ["same" if found == wanted else "other"]
            for act in (lambda: place.read("absent", 9), place.survey):
                try:
                    act()
                except SecureTrainError as error:
                    words.append(error.code)
            os.write(writing, " ".join(words).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(writing)
    assert os.read(reading, 100) == b"same ST-USAG-002 ST-USAG-007"
    os.close(reading)
    with pytest.raises(IntegrityError, match="ST-CKPT-201"):
        run.save(1)
