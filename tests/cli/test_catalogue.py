# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain catalogue`` as its users type it, and ``verify NAME@FOLDER``."""

import json
import shutil
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from securetrain.artifacts.dataset.verified import sign_documents
from securetrain.cli.artifacts.catalogue import command
from securetrain.cli.artifacts.verify import command as verify_command
from securetrain.core import STATE_VARIABLE
from securetrain.core.errors import SecureTrainError
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, sign_root

pytest.importorskip("tuf")


def run(*arguments, verb=command):
    words = [str(one) for one in arguments]
    result = CliRunner().invoke(verb, words, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value, result.stdout


def refused(*arguments, verb=command):
    with pytest.raises(SecureTrainError) as error:
        run(*arguments, verb=verb)
    return error.value.code


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A folder with two datasets under one key, and the files of keys."""
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name in ("root", "alice", "bob", "ci"):
        key = PrivateKey.create(tmp_path / f"{name}.key")
        (tmp_path / f"{name}.pub.pem").write_bytes(key.public.pem)
    key, now = PrivateKey.generate(), datetime.now(UTC)
    roles = {TrustRole.DATASET: [key.public]}
    begins, ends = now - timedelta(hours=1), now + timedelta(days=30)
    (tmp_path / "trust.json").write_bytes(sign_root(roles, PrivateKey.generate(), begins, ends))
    (tmp_path / "store").mkdir()
    for name in ("good", "toy"):
        documents = [("train", "a", name.encode() * 1000)]
        sign_documents(documents, tmp_path / "store" / name, name=name, key=key, now=now)
    init = ["init", "store", "--root-key", "root.key", "--threshold", 2, "--out", "root.json"]
    run(*init, "--signer", "alice.pub.pem", "--signer", "bob.pub.pem", "--publisher", "ci.pub.pem")
    return tmp_path


ROOT = ["--catalogue-root", "root.json"]
TRUST = ["--trust", "trust.json"]


def publish(name, path):
    run("add", "store", name, path, *ROOT, *TRUST)
    run("sign", "store", *ROOT, "--key", "alice.key")
    return run("sign", "store", *ROOT, "--key", "bob.key", "--key", "ci.key")


@pytest.mark.usefixtures("house")
def test_from_the_first_key_to_a_verified_name():
    _, out = publish("corpus", "store/good")
    assert "add corpus: dataset" in out
    assert "published in store" in out
    _, out = run("show", "store", *ROOT, "--json")
    assert json.loads(out)["entries"]["corpus"]["location"] == "good"
    for name in ("corpus@store", "corpus@catalogue"):
        given = [name, *ROOT, *TRUST, "--catalogue", "store", "--json"]
        code, out = run(*given, verb=verify_command)
        assert code == 0
        said = json.loads(out)
        assert said["not_asked"] == ["name", "signer"]
        assert said["expected"][0]["digest"] == said["digest"]
    run("export", "store", "layout", *ROOT)
    _, out = run("show", "layout", *ROOT)
    assert "corpus" in out


def test_the_directory_of_an_entry_was_swapped(house):
    publish("corpus", "store/good")
    shutil.rmtree(house / "store/good")
    shutil.copytree(house / "store/toy", house / "store/good")
    code, out = run("corpus@store", *ROOT, *TRUST, "--json", verb=verify_command)
    assert code == 12
    assert {problem["code"] for problem in json.loads(out)["problems"]} == {"ST-DATA-127"}


def test_a_directory_of_the_same_name_is_not_taken_for_it(house):
    """With a root, NAME@FOLDER is a question to the catalogue, whatever lies here."""
    publish("corpus", "store/good")
    shutil.copytree(house / "store/toy", house / "other@store")
    assert refused("other@store", *ROOT, *TRUST, verb=verify_command) == "ST-CTLG-121"
    code, _ = run("./other@store", *ROOT, *TRUST, verb=verify_command)
    assert code == 0


@pytest.mark.usefixtures("house")
def test_one_of_two_publishes_nothing():
    run("add", "store", "corpus", "store/good", *ROOT, *TRUST)
    _, out = run("sign", "store", *ROOT, "--key", "alice.key", "--key", "ci.key", "--json")
    assert json.loads(out)["published"] is False
    assert refused("corpus@store", *ROOT, *TRUST, verb=verify_command) == "ST-CTLG-101"


def test_what_does_not_verify_is_not_added(house):
    (house / "store/toy/train.bin").unlink(missing_ok=True)
    for path in (house / "store/toy").glob("*.bin"):
        path.write_bytes(b"x")
    code = refused("add", "store", "corpus", "store/toy", *ROOT, *TRUST)
    assert code.startswith("ST-DATA-1")
    assert refused("add", "store", "corpus", house, *ROOT, *TRUST) == "ST-USAG-001"


@pytest.mark.usefixtures("house")
def test_questions_that_nobody_can_answer():
    ask = {"verb": verify_command}
    assert refused("corpus@store", "--catalogue", "store", *TRUST, **ask) == "ST-USAG-001"
    assert refused("corpus@catalogue", *ROOT, *TRUST, **ask) == "ST-USAG-001"
    remote = ["corpus@gs://x", "--offline", *ROOT, *TRUST]
    assert refused(*remote, **ask) == "ST-USAG-001"
    assert refused("remove", "store", "corpus", *ROOT) == "ST-CTLG-121"
