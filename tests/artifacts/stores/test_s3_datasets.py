# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Datasets in S3, over HTTP: read in ranges, and never a byte that was not signed."""

import json
import random

import pytest
from click.testing import CliRunner

from securetrain.artifacts.dataset.sign import About, sign_in_place
from securetrain.artifacts.dataset.verified import Dataset
from securetrain.cli.artifacts.verify import command
from securetrain.core.errors import IntegrityError
from securetrain.core.hashtree import TreeParams
from tests.s3_store import BUCKET, Fault
from tests.vocabulary import refused

URL = f"s3://{BUCKET}/data"
DATA = random.Random(5).randbytes(50_000)


@pytest.fixture
def published(s3, tmp_path, keys, now):
    """Signed here, and copied there as any tool does."""
    local = tmp_path / "data"
    local.mkdir()
    (local / "a.bin").write_bytes(DATA)
    sign_in_place(
        local, About(name="d"), key=keys.dataset, now=now, params=TreeParams(leaf_size=4096)
    )
    for path in sorted(path for path in local.rglob("*") if path.is_file()):
        s3.direct("PUT", f"data/{path.relative_to(local)}", path.read_bytes())
    return s3


@pytest.fixture
def opened(published, trust, now):
    with Dataset.open(URL, trust=trust, policy=None, now=now) as data:
        published.asked.clear()
        yield data


def test_ranges_are_read_and_no_more(published, opened):
    assert opened.read("a.bin", 5000, 300) == DATA[5000:5300]
    gets = [one for one in published.asked if (one.name, one.method) == ("a.bin", "GET")]
    assert len(gets) == 1
    assert opened.read("a.bin", 4200, 100) == DATA[4200:4300]
    assert len([one for one in published.asked if one.name == "a.bin"]) == 2  # its size, one leaf


def test_what_changes_after_it_was_verified_changes_nothing(published, opened):
    """The verified bytes are in this process's memory; the next leaf is judged when it is read."""
    assert opened.read("a.bin", 0, 4096) == DATA[:4096]
    published.direct("PUT", "data/a.bin", bytes(len(DATA)))
    assert opened.read("a.bin", 0, 4096) == DATA[:4096]
    refused(IntegrityError, "ST-DATA-130", opened.read, "a.bin", 8192, 10)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault.FLIPPED, "ST-DATA-130"),
        pytest.param(Fault.SHIFTED, "ST-DATA-130", marks=pytest.mark.many),
        (Fault.CUT, "ST-DATA-200"),
        pytest.param(Fault.SHORT, "ST-DATA-200", marks=pytest.mark.many),
        (Fault.WHOLE, "ST-DATA-200"),
        (Fault.OTHER_RANGE, "ST-DATA-200"),
        pytest.param(Fault.ABSENT, "ST-DATA-200", marks=pytest.mark.many),
    ],
)
def test_a_read_is_right_or_refused(published, opened, fault, code):
    published.fault = lambda asked: (
        fault if (asked.name, asked.method) == ("a.bin", "GET") else None
    )
    refused(IntegrityError, code, opened.read, "a.bin", 5000, 300)
    published.honest()
    assert opened.read("a.bin", 5000, 300) == DATA[5000:5300]


def test_verify_at_the_command_line(published, keys, tmp_path):
    root = tmp_path / "trust.json"
    root.write_bytes(keys.trust_file())

    def run():
        words = [URL, "--trust", str(root), "--json"]
        done = CliRunner().invoke(command, words, standalone_mode=False)
        return done.return_value, json.loads(done.stdout)

    code, said = run()
    assert (code, said["path"]) == (0, URL)
    published.direct("PUT", "data/more.bin", b"x")
    code, said = run()
    assert code == 14
    assert "ST-DATA-141" in {one["code"] for one in said["problems"]}
