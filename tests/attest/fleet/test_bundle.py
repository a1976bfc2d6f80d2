# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Evidence in files; `test_an_answer_proves_everything` is the control of every forgery."""

import base64
import json
import stat
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from securetrain.attest.fleet.bundle import (
    ANSWER_WITHIN,
    FILE_LIMIT,
    check_made_for,
    key_text,
    make_question,
    node_key,
    own_question,
    read_bundle,
    read_question,
    read_secret,
    verify_bundle,
    write_bundle,
    write_question,
)
from securetrain.core import canonical
from securetrain.core.errors import AttestationError, UsageError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.appraiser import SoftwareAppraiser
from securetrain.evidence.binding import NONCE_SIZE
from securetrain.evidence.node_evidence import parse_node
from securetrain.evidence.selfreport import SELF_ASSERTED_TYPE
from securetrain.identity.keys import KeyKind, PrivateKey, PublicKey
from tests import vocabulary
from tests.attest.worlds import Machine, World, bundle_of, document, replaced, resigned, self_report
from tests.evidence.tpm.forge import NOW
from tests.tables import each, forgeries, items
from tests.vocabulary import changed

LEASE = timedelta(minutes=10)


@pytest.fixture(scope="module")
def world():
    return World(Machine("node-0"), Machine("node-1"))


@pytest.fixture(scope="module")
def asked(world):
    """A verifier's question to node-0."""
    return make_question(bundle_of(world.machine), world.appraiser, NOW)


@pytest.fixture(scope="module")
def answer(world, asked):
    return bundle_of(world.machine, answer_to=asked)


def verify(world, bundle, secret=None, now=NOW, appraiser=None):
    return verify_bundle(
        bundle, appraiser or world.appraiser, secret=secret, policy="cd" * 32, lease=LEASE, now=now
    )


def refused(code, world, bundle, secret=None, **how):
    return vocabulary.refused(AttestationError, code, verify, world, bundle, secret, **how)


# What must work.


def test_an_answer_proves_everything(world, asked, answer):
    verdict = verify(world, answer, asked)
    assert verdict.open == ()
    result = verdict.result
    assert (result.job, result.node, result.tier) == ("offline", "node-0", NodeTier.TPM)
    assert result.key_id == world.machine.key.key_id
    assert result.policy == "cd" * 32
    assert result.reference_values == world.appraiser.reference_values
    assert (result.issued, result.expires) == (NOW, NOW + LEASE)


def test_without_a_question_freshness_and_the_key_stay_open(world):
    verdict = verify(world, bundle_of(world.machine))
    assert [text.partition(":")[0] for text in verdict.open] == ["freshness", "the attestation key"]


def test_a_question_without_a_credential_leaves_the_key_open(world, asked):
    question = msgspec.structs.replace(asked.question, credential=None)
    secret = msgspec.structs.replace(asked, question=question)
    verdict = verify(world, bundle_of(world.machine, answer_to=secret), secret)
    assert verdict.open == ("the attestation key: the question had no credential",)


def test_a_nodes_own_word_proves_no_machine(world, tmp_path):
    bundle = self_report(world.machine, tmp_path)
    verdict = verify(world, bundle, appraiser=SoftwareAppraiser())
    assert [text.partition(":")[0] for text in verdict.open] == ["the machine", "freshness"]
    secret = make_question(bundle, SoftwareAppraiser(), NOW)
    assert secret.question.credential is None
    answer = self_report(world.machine, tmp_path, secret.question)
    verdict = verify(world, answer, secret, appraiser=SoftwareAppraiser())
    assert [text.partition(":")[0] for text in verdict.open] == ["the machine"]
    assert verdict.result.tier is NodeTier.SELF_ASSERTED


def test_questions_are_new_each_time(world):
    bundle = bundle_of(world.machine)
    first, second = (make_question(bundle, world.appraiser, NOW) for _ in range(2))
    assert first.secret != second.secret
    assert first.question.nonce != second.question.nonce
    assert len(first.question.nonce) == NONCE_SIZE
    assert first.secret != first.question.nonce
    assert first.asked == NOW
    assert own_question("n").nonce != own_question("n").nonce


@each(
    "late, good",
    (timedelta(0), True),
    (ANSWER_WITHIN - timedelta(seconds=1), True),
    (ANSWER_WITHIN, False),
    (timedelta(seconds=-1), False),
)
def test_how_long_an_answer_may_take(asked, answer, late, good):
    world = World(Machine("node-0"))
    world = World(
        world.machine, values=msgspec.structs.replace(world.values, expires=NOW + timedelta(days=9))
    )
    secret = make_question(bundle_of(world.machine), world.appraiser, NOW)
    bundle = bundle_of(world.machine, answer_to=secret)
    if good:
        assert verify(world, bundle, secret, now=NOW + late).open == ()
    else:
        assert "was asked at" in refused("ST-ATTS-002", world, bundle, secret, now=NOW + late).what


def test_files(world, asked, answer, tmp_path):
    write_bundle(tmp_path / "b", answer)
    assert read_bundle(tmp_path / "b") == answer
    write_question(tmp_path / "q", tmp_path / "s", asked)
    assert read_question(tmp_path / "q") == asked.question
    assert read_secret(tmp_path / "s") == asked
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
    assert asked.secret not in (tmp_path / "q").read_bytes()
    assert answer.node == "node-0"
    assert answer.ak_name == world.machine.tpm.ak.public.name


def test_a_key_as_policies_name_it():
    key = PrivateKey.generate().public
    assert key_text(key).startswith("MCowBQYDK2VwAyEA")
    assert PublicKey.from_spki(base64.b64decode(key_text(key))) == key


# Files that are none.


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


def rewritten(answer, **fields):
    return canonical.dumps(json.loads(document(answer)) | fields)


@items(
    "id, spoil, said",
    ("empty", lambda data, _: b"", "not valid"),
    ("not-text", lambda data, _: b"\xff" + data, "not valid"),
    ("a-list", lambda data, _: b"[]", "it names no schema"),
    ("no-schema", lambda data, _: b"{}", "it names no schema"),
    ("cut-off", lambda data, _: data[:-1], "not valid"),
    ("a-byte-more", lambda data, _: data + b"\n", "canonical"),
    ("unknown-field", lambda _, a: rewritten(a, tier="tpm"), "unknown field"),
    (
        "another-version",
        lambda _, a: rewritten(a, schema="securetrain.dev/evidence-bundle/v2"),
        "evidence-bundle/v2",
    ),
    ("no-question", lambda _, a: rewritten(a, question=None), "question"),
    ("no-time-zone", lambda _, a: rewritten(a, collected="2026-06-01T12:00:00"), "collected"),
    ("short-binding", lambda _, a: rewritten(a, binding="AAAA"), "binding"),
    ("not-base64", lambda _, a: rewritten(a, body="%"), "body"),
    (
        "a-key-twice",
        lambda data, _: data.replace(b'"body"', b'"body":"","body"', 1),
        "duplicate key",
    ),
    ("deep", lambda data, _: b"[" * 100_000, "not valid"),
)
def test_a_file_that_is_no_bundle(path, answer, spoil, said):
    path.write_bytes(spoil(document(answer), answer))
    vocabulary.refused(UsageError, "ST-USAG-008", read_bundle, path, says=said, names=str(path))


def test_a_file_of_another_kind(path, asked, answer):
    path.write_bytes(document(asked.question))
    for read in (read_bundle, read_secret):
        vocabulary.refused(UsageError, "attestation-question/v1", read, path)
    path.write_bytes(document(answer))
    vocabulary.refused(UsageError, "evidence-bundle/v1", read_question, path)


def test_a_giant_and_a_missing_file(path, tmp_path):
    with path.open("wb") as file:
        file.truncate(FILE_LIMIT + 1)
    for place in (path, tmp_path / "nothing", tmp_path):
        vocabulary.refused(UsageError, "ST-USAG-002", read_bundle, place)


# Forgeries.


@forgeries(
    "id, code, forge",
    (
        "body-altered",
        "ST-ATTS-003",
        lambda b, _: replaced(b, body=b.body.replace(b"quote", b"Quote", 1)),
    ),
    ("signature-cut", "ST-ATTS-003", lambda b, _: replaced(b, signature=b.signature[:-1])),
    ("no-signature", "ST-ATTS-003", lambda b, _: replaced(b, signature=b"")),
    (
        "another-node-key",
        "ST-ATTS-003",
        lambda b, _: replaced(b, key=PrivateKey.generate(KeyKind.P256).public.spki),
    ),
    ("node-key-is-none", "ST-ATTS-001", lambda b, _: replaced(b, key=b"key")),
    ("binding-overwritten", "ST-ATTS-003", lambda b, _: replaced(b, binding=bytes(32))),
    (
        "called-a-self-report",
        "ST-ATTS-003",
        lambda b, _: replaced(b, media_type=SELF_ASSERTED_TYPE),
    ),
    ("body-respelt-and-signed", "ST-ATTS-001", lambda b, w: resigned(b, w.machine, b.body + b" ")),
    (
        "manifest-altered-and-signed",
        "ST-ATTS-003",
        lambda b, w: resigned(
            b,
            w.machine,
            msgspec.structs.replace(
                parse_node(b.body),
                manifest=parse_node(b.body).manifest.replace(b'"vendor":"', b'"vendor":"x'),
            ).encode(),
        ),
    ),
    (
        "tpm-left-out-and-signed",
        "ST-ATTS-013",
        lambda b, w: resigned(
            b, w.machine, msgspec.structs.replace(parse_node(b.body), tpm=None).encode()
        ),
    ),
    (
        "endorsement-key-of-another-node",
        "ST-ATTS-012",
        lambda b, w: replaced(
            b,
            keys=msgspec.structs.replace(
                w.machines[1].keys(), ak_public=w.machine.keys().ak_public
            ),
        ),
    ),
    (
        "another-attestation-key",
        "ST-ATTS-003",
        lambda b, w: replaced(
            b,
            keys=msgspec.structs.replace(
                w.machine.keys(), ak_public=w.machines[1].keys().ak_public
            ),
        ),
    ),
    ("keys-left-out", "ST-ATTS-003", lambda b, _: replaced(b, keys=None)),
)
def test_an_altered_answer(world, asked, answer, code, forge):
    forged = forge(answer, world)
    assert forged != answer
    assert refused(code, world, forged, asked).where


@pytest.mark.forgery
def test_an_answer_to_another_question(world, asked):
    other = make_question(bundle_of(world.machine), world.appraiser, NOW)
    old = bundle_of(world.machine, answer_to=other)
    assert "another question" in refused("ST-ATTS-002", world, old, asked).what


@pytest.mark.forgery
def test_an_old_recording_dressed_as_the_answer(world, asked):
    """The question is public: writing it into an old bundle changes what the bundle is bound to."""
    dressed = replaced(bundle_of(world.machine), question=asked.question, asked_itself=False)
    refused("ST-ATTS-003", world, dressed, asked)


@pytest.mark.forgery
def test_who_asked_is_not_the_files_word(world, asked):
    """`asked_itself` is for people: without the secret nothing is fresh, whatever it says."""
    claimed = replaced(bundle_of(world.machine), asked_itself=False)
    assert verify(world, claimed).open
    refused("ST-ATTS-002", world, claimed, asked)


@pytest.mark.forgery
def test_a_credential_that_was_not_opened(world, asked):
    def guess(said, value):
        activation = bytes(len(value))
        return changed(said, tpm={"activation": activation})

    refused("ST-ATTS-016", world, bundle_of(world.machine, guess, answer_to=asked), asked)


@pytest.mark.forgery
def test_another_secret(world, asked, answer):
    refused("ST-ATTS-016", world, answer, msgspec.structs.replace(asked, secret=bytes(32)))


@pytest.mark.forgery
def test_the_tpm_of_another_node(world, asked):
    """node-1's machine under node-0's name."""
    machine = world.machines[1]
    machine.name = "node-0"
    try:
        refused("ST-ATTS-012", world, bundle_of(machine))
        with pytest.raises(AttestationError, match="ST-ATTS-012"):
            make_question(bundle_of(machine), world.appraiser, NOW)
    finally:
        machine.name = "node-1"


def test_node_evidence_needs_reference_values(world, answer):
    error = refused("ST-ATTS-009", world, answer, appraiser=SoftwareAppraiser())
    assert error.where.endswith("node.reference_values")


def test_reference_values_that_are_over(world):
    refused("ST-ATTS-009", world, bundle_of(world.machine), now=NOW + timedelta(days=2))


def test_what_a_bundle_is_bound_to(world):
    bundle = bundle_of(world.machine)
    manifest = parse_node(bundle.body).manifest
    assert check_made_for(bundle, bundle.question, manifest) == bundle.binding
    for question, said in ((own_question("node-0"), manifest), (bundle.question, b"{}")):
        vocabulary.refused(AttestationError, "ST-ATTS-003", check_made_for, bundle, question, said)
    assert node_key(bundle) == world.machine.key.public
    assert bundle.collected == datetime(2026, 6, 1, 12, tzinfo=UTC)
