# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The summary of a pack says what links show, and never what a statement says. No torch."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from securetrain.chain import judging
from securetrain.chain.links import verified
from securetrain.chain.packing import Wanted
from securetrain.chain.verdict import Verdict, summarize
from securetrain.cli import clock
from securetrain.cli.main import main
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey
from securetrain.policy.load import LoadedPolicy, load_policy
from tests.chain.test_other_keys import POLICY as POLICY_TEXT
from tests.chain.test_packs import of_nodes
from tests.chain.worlds import LATER, SHOWN, Run, Whole, policy

POLICY = LoadedPolicy(policy=load_policy("dev").policy, digest="b" * 64)
LINKS = [f"SECURETRAIN_LINK_{link.upper()}" for link in ("nodes", "membership", "policy")]
PARENTS = "SECURETRAIN_LINK_PARENTS"


def said_of(result: Verdict, used: LoadedPolicy | None = POLICY) -> dict[str, Any]:
    """The summary's predicate."""
    made: dict[str, Any] = json.loads(summarize(replace(result, policy=used)))
    assert result.opened is not None
    assert made["subject"][0]["digest"] == {"securetrainTree1": result.opened.digest}
    found: dict[str, Any] = made["predicate"]
    assert found["resourceUri"].endswith(result.opened.digest)
    return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run").saved(2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> Whole:
    made = Whole(tmp_path_factory.mktemp("whole") / "run")
    made.save_whole()
    return made


def test_levels_are_the_verified_links(run: Run) -> None:
    path = run.pack()
    said = said_of(run.verify(path, policy=policy(*SHOWN)))
    assert said["verificationResult"] == "PASSED"
    assert said["verifiedLevels"] == [*LINKS, PARENTS]
    assert said["policy"] == {"uri": "dev", "digest": {"sha256": "b" * 64}}
    # Without a policy, what is missing has no level.
    said = said_of(run.verify(path), None)
    assert said["verificationResult"] == "PASSED"
    assert said["verifiedLevels"] == [*LINKS, PARENTS]
    assert said["policy"]["uri"].endswith("/chain/v2")


def test_bytes_have_a_level_only_with_the_weights(whole: Whole) -> None:
    asked = policy("nodes", "policy")
    without = said_of(whole.verify(whole.pack("a.stpack", Wanted()), policy=asked))
    assert without["verificationResult"] == "PASSED"
    assert not [one for one in without["verifiedLevels"] if "_L" in one and "LINK" not in one]
    path = whole.pack("b.stpack", Wanted(weights=True))
    result = whole.verify(path, policy=asked)
    whole_of = result.opened
    assert whole_of is not None
    levels = said_of(result)["verifiedLevels"]
    assert levels[0] == "SECURETRAIN_L1"
    assert said_of(result, None)["verifiedLevels"][:1] == ["SECURETRAIN_L1"]
    shown = result.judged[0].verdicts
    everything = {
        link: msgspec.structs.replace(shown[link], state=LinkState.VERIFIED) for link in ChainLink
    }

    def level(subject: Any = whole_of, used: LoadedPolicy | None = POLICY, **states: Any) -> str:
        verdicts = {
            link: msgspec.structs.replace(one, **states.get(link.value, {}))
            for link, one in everything.items()
        }
        judged = replace(result.judged[0], verdicts=verdicts)
        bent = replace(result, judged=(judged,), opened=subject)
        found = [one for one in said_of(bent, used)["verifiedLevels"] if "LINK" not in one]
        return str(found[-1]) if found else ""

    missing = {"state": LinkState.MISSING}
    node = whole_of.checkpoint.nodes[0].node
    bare = msgspec.structs.replace(whole_of.checkpoint, run_id="")
    assert level() == "SECURETRAIN_L3"
    assert level(used=None) == "SECURETRAIN_L1"
    assert level(policy=missing) == level(dataset=missing) == "SECURETRAIN_L1"
    assert level(subject=replace(whole_of, predicate=bare)) == "SECURETRAIN_L1"
    assert level(nodes=missing) == level(nodes={"tiers": {}}) == "SECURETRAIN_L2"
    assert level(nodes={"tiers": {node: NodeTier.TEE}}) == "SECURETRAIN_L2"
    assert whole.verify(whole.pack("rows.stpack", Wanted(rows=(1, 2)))).num_files == 0


@pytest.mark.forgery
def test_a_tier_that_is_only_said_has_no_level(run: Run, monkeypatch: Any) -> None:
    """Signed by the checkpoint's key: whoever believes the statement finds hardware everywhere."""
    run.save(of_nodes(run, tier=NodeTier.TEE_GPU))
    path = run.pack()
    result = run.verify(path, policy=policy("policy", depth="checkpoint"))
    assert result.opened is not None
    assert min(one.tier for one in result.opened.checkpoint.nodes) >= NodeTier.VTPM, "the control"
    said = said_of(result)
    assert (said["verificationResult"], said["verifiedLevels"]) == ("FAILED", [])
    # Missing evidence breaks nothing where nobody requires it, and has no level either.
    honest = run.said()
    unbound = msgspec.structs.replace(honest.bound, membership=None)
    run.save(msgspec.structs.replace(of_nodes(run, tier=NodeTier.TEE_GPU), bound=unbound, step=50))
    path = run.pack("b.stpack")
    said = said_of(run.verify(path, policy=policy("policy", depth="checkpoint")))
    assert said["verificationResult"] == "PASSED"
    assert LINKS[0] not in said["verifiedLevels"]
    # The control: with the judge of nodes away, the level is there.
    anything = verified(ChainLink.NODES, "anything")
    monkeypatch.setitem(judging.JUDGES, ChainLink.NODES, lambda *_: anything)
    said = said_of(run.verify(path, policy=policy("policy", depth="checkpoint")))
    assert LINKS[0] in said["verifiedLevels"]


# --- the command ----------------------------------------------------------------------------------

Ask = Callable[..., int]


@pytest.fixture
def ask(whole: Whole, monkeypatch: Any, tmp_path: Path) -> Ask:
    """Ask the command about a pack, at a time when its root counts; the exit code."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return LATER.astimezone(tz)

    monkeypatch.setattr(clock, "datetime", Clock)
    trust = tmp_path / "trust.json"
    trust.write_bytes(whole.trust_bytes())

    def call(path: Path, links: str, *words: str) -> int:
        asked = tmp_path / "asked.yaml"
        asked.write_text(POLICY_TEXT.format(links=links))
        return main(["verify", str(path), "--trust", str(trust), "--policy", str(asked), *words])

    return call


def test_the_command_writes_one_for_a_pack(whole: Whole, ask: Ask, tmp_path: Path) -> None:
    path = whole.pack("c.stpack", Wanted())
    out, key = tmp_path / "vsa.json", PrivateKey.generate()
    assert ask(path, "nodes, policy", "--vsa", str(out)) == 0
    said = json.loads(out.read_bytes())
    assert said["predicate"]["verificationResult"] == "PASSED"
    assert said["predicate"]["policy"]["uri"] == "asks"
    assert LINKS[0] in said["predicate"]["verifiedLevels"]
    assert said["predicate"]["timeVerified"] == LATER.strftime("%Y-%m-%dT%H:%M:%SZ")
    before = out.read_bytes()
    assert ask(path, "nodes, policy", "--vsa", str(out)) == 2, "nothing is overwritten"
    assert out.read_bytes() == before
    # Signed, where a key is given.
    key.save(tmp_path / "verifier.pem")
    words = ["--vsa", str(tmp_path / "signed.json"), "--vsa-key", str(tmp_path / "verifier.pem")]
    assert ask(path, "nodes, policy", *words) == 0
    signed = (tmp_path / "signed.json").read_bytes()
    assert dsse.verify(signed, dsse.IN_TOTO, {key.key_id: key.public}).data == before


@pytest.mark.forgery
def test_a_refused_pack_has_a_failed_summary_or_none(whole, run, ask, tmp_path):
    path, out = whole.pack("d.stpack", Wanted()), tmp_path / "vsa.json"
    assert ask(path, "log", "--vsa", str(out)) != 0
    said = json.loads(out.read_bytes())["predicate"]
    assert (said["verificationResult"], said["verifiedLevels"]) == ("FAILED", [])
    # Of another key: no statement verifies, so there is no digest.
    assert ask(run.pack(), "nodes", "--vsa", str(tmp_path / "none.json")) != 0
    assert not (tmp_path / "none.json").exists()
    # A summary has one time, and cannot say of which time it is true.
    words = ["--at", "witness", "--vsa", str(tmp_path / "none.json")]
    assert ask(path, "nodes", *words) == 2
    assert not (tmp_path / "none.json").exists()
