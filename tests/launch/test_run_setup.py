# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import stat
from datetime import UTC, datetime, timedelta

from cryptography.exceptions import UnsupportedAlgorithm

from securetrain.artifacts.statement.members import PAYLOAD_TYPE, RankKey
from securetrain.core import canonical
from securetrain.core.errors import IdentityError, PolicyError, UsageError
from securetrain.core.files import write_atomic
from securetrain.identity import dsse
from securetrain.identity.job_ca import JobCA
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import Signatures, TrustRole, TrustRoot, sign_root
from securetrain.launch.setup import (
    KEYS,
    OWN_KEYS,
    PAIRS,
    WRITERS,
    default_run_dir,
    make_identity,
    node_name,
    prepare_run,
)
from securetrain.ledger import WriterRole, key_file
from securetrain.policy import load_policy
from securetrain.policy.load import load_resolved
from securetrain.rendezvous.member.identity_dir import load_identity
from tests.vocabulary import refused

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_new_run_directory(tmp_path):
    setup = prepare_run(tmp_path / "runs" / "one", "dev", NOW)
    run = setup.run
    assert setup.created
    assert stat.S_IMODE(run.root.stat().st_mode) == 0o700
    for name in (*KEYS, *OWN_KEYS, "node"):
        assert stat.S_IMODE(run.key(name).stat().st_mode) == 0o600
    trust = TrustRoot.load(run.trust, NOW)
    for role, name in WRITERS.items():
        assert list(trust.keys_for(role)) == [PrivateKey.load(run.key(name)).key_id]
        assert trust.keys_for(role).keys() <= trust.keys_for(TrustRole.LEDGER).keys()
    assert len(trust.keys_for(TrustRole.LEDGER)) == 4
    assert list(trust.keys_for(TrustRole.CHECKPOINT)) == [
        PrivateKey.load(run.key("checkpoint")).key_id
    ]
    assert load_resolved(run.resolved_policy).digest == load_policy("dev").digest
    assert b"id: dev" in run.policy.read_bytes()


def test_what_outlives_the_run_is_signed_by_pairs_and_needs_both(tmp_path):
    run = prepare_run(tmp_path, "dev", NOW).run
    trust = TrustRoot.load(run.trust, NOW)
    for name, role in PAIRS.items():
        key = PrivateKey.load(run.key(name))
        (public,) = trust.keys_for(role).values()
        assert trust.signatures(role) is Signatures.BOTH
        assert key.public.companion is not None
        assert (public, public.companion) == (key.public, key.public.companion)
        envelope = dsse.sign(b"{}", dsse.IN_TOTO, [key])
        assert trust.verify(envelope, dsse.IN_TOTO, role).paired == {key.key_id}
        lone = dsse.sign(b"{}", dsse.IN_TOTO, [PrivateKey(key.native)])
        refused(IdentityError, "ST-IDEN-024", trust.verify, lone, dsse.IN_TOTO, role)
    others = trust.document.roles.keys() - set(PAIRS.values())
    assert {trust.signatures(role) for role in others} == {Signatures.CLASSICAL}


def test_where_there_is_no_ml_dsa_no_run_directory_is_begun(tmp_path, monkeypatch):
    class Absent:
        @staticmethod
        def generate():
            raise UnsupportedAlgorithm("ML-DSA is not supported by this backend")

    with monkeypatch.context() as patched:
        patched.setattr("securetrain.identity.keys.mldsa.MLDSA65PrivateKey", Absent)
        refused(IdentityError, "ST-IDEN-025", prepare_run, tmp_path / "run", "dev", NOW)
    assert prepare_run(tmp_path / "run", "dev", NOW).created, "nothing was left in its way"


def test_it_is_used_again_under_its_policy_while_its_trust_root_lives(tmp_path):
    (tmp_path / "dataset").mkdir()
    first = prepare_run(tmp_path, "dev", NOW)
    second = prepare_run(tmp_path, "dev", NOW + timedelta(days=1))
    assert (first.created, second.created, second.job) == (True, False, first.job)
    assert prepare_run(tmp_path / "other", "dev", NOW).job != first.job
    refused(PolicyError, "ST-PLCY-005", prepare_run, tmp_path, "baseline", NOW)
    refused(IdentityError, "ST-IDEN-008", prepare_run, tmp_path, "dev", NOW + timedelta(days=400))


def test_an_incomplete_directory_is_refused(tmp_path):
    run = prepare_run(tmp_path / "a", "dev", NOW).run
    run.trust.unlink()
    refused(UsageError, "ST-USAG-005", prepare_run, run.root, "dev", NOW)


def test_keys_are_not_written_beside_other_files(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    refused(UsageError, "ST-USAG-017", prepare_run, tmp_path, "dev", NOW, says="thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_names():
    assert (default_run_dir(NOW) != default_run_dir(NOW), node_name("a/b c.d")) == (True, "a-b-c.d")


def test_the_ranks_of_a_run_get_a_key_that_the_agent_has_certified(tmp_path):
    setup = prepare_run(tmp_path / "run", "dev", NOW)
    ca = JobCA.create(setup.policy.policy.identity.trust_domain, setup.job, NOW)
    run = setup.run
    for left in ("rank.pem", "rank.json"):
        (run.keys / left).write_bytes(b"of an earlier version")
    signer = make_identity(setup, ca, NOW)
    trust = TrustRoot.load(run.trust, NOW)
    payload = trust.verify(signer.certificate.encode(), PAYLOAD_TYPE, TrustRole.NODE)
    said = canonical.decode(payload.data, RankKey)
    assert said.run_id == setup.job
    assert said.node == str(load_identity(run.keys, NOW).spiffe)
    first = signer.key.key_id
    assert make_identity(setup, ca, NOW).key.key_id != first
    assert {path.name for path in run.keys.iterdir()} == {
        *(f"{name}.pem" for name in (*KEYS, *OWN_KEYS, "node")),
        *("node.crt", "ca.crt"),
    }, "the key of the ranks is in no file"


def test_a_directory_of_an_earlier_version_has_one_key_for_two_roles(tmp_path):
    run = prepare_run(tmp_path, "dev", NOW).run
    keys = {name: PrivateKey.load(run.key(name)) for name in KEYS}
    roles = {role: [keys["worker"].public] for role in WRITERS}
    for role in (TrustRole.LEDGER_COORDINATOR, TrustRole.LEDGER_LAUNCHER):
        roles[role] = [keys["agent"].public]
    roles[TrustRole.LEDGER] = [keys["agent"].public, keys["worker"].public]
    write_atomic(run.trust, sign_root(roles, keys["root"], NOW, NOW + timedelta(days=9)))
    for name in OWN_KEYS:
        run.key(name).unlink()
    PrivateKey(keys["checkpoint"].native).save(run.key("checkpoint"))  # and no pairs
    assert not prepare_run(tmp_path, "dev", NOW).created
    assert key_file(run, WriterRole.COORDINATOR) == run.key("agent")
    assert key_file(run, WriterRole.RANK) == run.key("worker")


def test_a_directory_of_this_version_has_a_key_for_each_role(tmp_path):
    run = prepare_run(tmp_path, "dev", NOW).run
    assert key_file(run, WriterRole.COORDINATOR) == run.key("coordinator")
    assert key_file(run, WriterRole.RANK) == run.key("trainer")
    run.key("trainer").unlink()
    refused(UsageError, "ST-USAG-005", prepare_run, tmp_path, "dev", NOW)
