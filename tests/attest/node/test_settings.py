# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Settings of a node's attester: from a file, from what is there, or none."""

import json
import re
import sys
from pathlib import Path

import pytest

from securetrain.attest.node.composite import MAX_TOKENS, Part
from securetrain.attest.node.settings import (
    FILE_LIMIT,
    AttesterSettings,
    TpmSettings,
    detect,
    load_settings,
    make_attester,
    settings_for,
)
from securetrain.attest.node.tpm.measurements import Sources
from securetrain.attest.node.tpm.transport import DEFAULT_DEVICE
from securetrain.core.errors import UsageError
from securetrain.identity.keys import KeyKind, PrivateKey
from tests.tables import items

KEY = PrivateKey.generate(KeyKind.P256)
WHOLE = {
    "tpm": {"address": "tcp:127.0.0.1:2321", "state": "/var/lib/securetrain/tpm"},
    "tee": "required",
    "gpus": "if-present",
    "tokens": ["/run/token.jwt"],
}


def written(tmp_path, document):
    path = tmp_path / "attester.json"
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    path.write_bytes(data)
    return path


def test_a_whole_file(tmp_path):
    settings = load_settings(written(tmp_path, WHOLE))
    assert settings.tpm == TpmSettings(
        address="tcp:127.0.0.1:2321", state="/var/lib/securetrain/tpm"
    )
    assert (settings.tee, settings.gpus) == (Part.REQUIRED, Part.IF_PRESENT)
    assert settings.tokens == ("/run/token.jwt",)


def test_nothing_speaks_unless_it_is_named(tmp_path):
    settings = load_settings(written(tmp_path, {}))
    assert settings == AttesterSettings()
    assert settings.tpm is None
    assert (settings.tee, settings.gpus, settings.tokens) == (Part.OFF, Part.OFF, ())


@items(
    "id, document, what",
    ("unknown-field", {**WHOLE, "tier": "tpm"}, "tier"),
    ("unknown-tpm-field", {"tpm": {"state": "/x", "trusted": True}}, "trusted"),
    ("no-folder-for-the-key", {"tpm": {"address": "/dev/tpmrm0"}}, "state"),
    ("an-empty-path", {"tpm": {"state": ""}}, "length >= 1"),
    ("a-path-too-long", {"tpm": {"state": "x" * 5000}}, "length <= 4096"),
    ("unknown-choice", {"tee": "maybe"}, "maybe"),
    ("wrong-type", {"gpus": True}, "bool"),
    ("too-many-tokens", {"tokens": ["t"] * (MAX_TOKENS + 1)}, "length <= 4"),
    ("a-field-twice", b'{"tee": "off", "tee": "required"}', "duplicate"),
    ("cut-off", b"{", ""),
    ("no-object", b"[]", "array"),
    ("not-text", b"\xff\xfe", ""),
    ("too-large", b"{}" + b" " * FILE_LIMIT, str(FILE_LIMIT)),
)
def test_a_file_that_is_refused(tmp_path, document, what):
    path = written(tmp_path, document)
    with pytest.raises(UsageError) as caught:
        load_settings(path)
    assert caught.value.code in {"ST-USAG-002", "ST-USAG-008"}
    assert str(path) in caught.value.where
    assert what in caught.value.what


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError):
        load_settings(tmp_path / "nothing.json")


def test_what_this_machine_has(tmp_path):
    device = tmp_path / "tpmrm0"
    assert detect(tmp_path / "state", device).tpm is None
    device.touch()
    found = detect(tmp_path / "state", device)
    assert found.tpm == TpmSettings(address=str(device), state=str(tmp_path / "state"))
    assert (found.tee, found.gpus) == (Part.IF_PRESENT, Part.IF_PRESENT)
    assert found.tokens == ()


def test_what_a_person_wrote(tmp_path):
    state = tmp_path / "state"
    assert settings_for("", state) == AttesterSettings()
    assert settings_for("auto", state) == detect(state)
    assert settings_for(str(written(tmp_path, WHOLE)), state).tee is Part.REQUIRED


def test_an_attester_without_a_tpm():
    attester = make_attester(AttesterSettings(), KEY, environ={"LD_PRELOAD": "x"})
    assert attester.key is KEY
    assert attester.environ == {"LD_PRELOAD": "x"}
    assert attester.executable == Path(sys.executable)
    assert attester.keys() is None
    assert (attester.tee, attester.gpus, attester.tokens) == (Part.OFF, Part.OFF, ())


def test_an_attester_of_everything(tmp_path):
    tpm = TpmSettings(
        address="unix:/run/tpm",
        state=str(tmp_path / "state"),
        event_log="/log",
        ima_binary="/binary",
        ima_ascii="/ascii",
    )
    settings = AttesterSettings(
        tpm=tpm, tee=Part.REQUIRED, gpus=Part.IF_PRESENT, tokens=("/a", "/b")
    )
    attester = make_attester(settings, KEY, environ={}, executable=Path("/usr/bin/python3"))
    assert attester.executable == Path("/usr/bin/python3")
    assert (attester.tee, attester.gpus) == (Part.REQUIRED, Part.IF_PRESENT)
    assert attester.tokens == (Path("/a"), Path("/b"))
    agent = attester.tpm
    assert agent is not None
    assert agent.address == "unix:/run/tpm"
    assert agent._sources == Sources(
        event_log=Path("/log"), ima_binary=Path("/binary"), ima_ascii=Path("/ascii")
    )


def test_defaults_are_the_kernels_own_places():
    settings = TpmSettings(state="/x")
    assert settings.address == DEFAULT_DEVICE
    found = Sources(
        event_log=Path(settings.event_log),
        ima_binary=Path(settings.ima_binary),
        ima_ascii=Path(settings.ima_ascii),
    )
    assert found == Sources()


def test_the_example_of_the_how_to(tmp_path):
    page = Path(__file__).parents[3] / "docs" / "how-to" / "attest-a-fleet.md"
    (example,) = re.findall(r"```json\n(.*?)```", page.read_text(), re.DOTALL)
    (tmp_path / "attester.json").write_text(example)
    settings = load_settings(tmp_path / "attester.json")
    assert settings.tpm == TpmSettings(state="/var/lib/securetrain/tpm")
