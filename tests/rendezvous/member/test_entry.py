# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What ``torchrun`` takes for ``--rdzv-endpoint`` and ``--rdzv-conf``; it connects to nothing."""

import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters

from securetrain.core.errors import UsageError
from securetrain.rendezvous.member.entry import create_handler, get_creator, parse_endpoint
from tests.tables import each, items
from tests.vocabulary import refused


@each(
    "text, host, port",
    ("host:1", "host", 1),
    ("192.0.2.1:65535", "192.0.2.1", 65535),
    ("[2001:db8::1]:29400", "2001:db8::1", 29400),
    ("host:00080", "host", 80),
)
def test_endpoints(text, host, port):
    assert parse_endpoint(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        *("", "host", "host:", ":1", "[]:1", "host:0", "host:65536", "host:-1", "host:+1"),
        *("host:x", "host: 1", "host:1_0", "host:000080"),
        pytest.param("host:\N{SUPERSCRIPT TWO}", id="a digit that is no number"),
        pytest.param("host:\N{ARABIC-INDIC DIGIT ONE}", id="a digit of another script"),
    ],
)
def test_what_is_no_endpoint(text):
    error = refused(UsageError, "is not HOST:PORT", parse_endpoint, text, "--here")
    assert (error.code, error.where) == ("ST-USAG-001", "--here")


@pytest.fixture
def create(job):
    """A handler of the job's first node, with settings as torchrun hands them over."""

    def make(*, endpoint="127.0.0.1:1", run_id="job-1", **config):
        identity = {"identity": str(job.folder())} | config
        return create_handler(
            RendezvousParameters("securetrain", endpoint, run_id, 1, 1, **identity)
        )

    job.identity()
    return make


def test_a_handler_has_not_connected_yet(create):
    handler = create(local_world="2", join_timeout="30")
    assert handler.get_run_id() == "job-1"
    assert handler.member is None
    assert get_creator() is create_handler


@items(
    "settings, what",
    ({"identity": ""}, "no identity"),
    ({"identity": None}, "no identity"),
    ({"token": "hunter2"}, "unknown setting 'token'"),
    ({"tunnel": "mine"}, "nothing that can be written"),
    ({"on_epoch": "rm"}, "nothing that can be written"),
    ({"run_id": "job-2"}, "the identity is for job job-1"),
    ({"endpoint": "here"}, "is not HOST:PORT"),
)
def test_settings_that_are_refused(create, settings, what):
    error = refused(UsageError, what, create, **settings)
    assert error.code == "ST-USAG-001"
    assert "hunter2" not in str(error), "a value may be a secret that does not belong here"


@pytest.mark.parametrize("name", ["local_world", "join_timeout"])
@items("value", "0", "two", "-1", "", "1.5", "\N{SUPERSCRIPT TWO}", "1" * 10, "1" * 5000)
def test_numbers_are_numbers(create, name, value):
    error = refused(UsageError, f"{name} is ", create, **{name: value})
    assert error.code == "ST-USAG-001"
