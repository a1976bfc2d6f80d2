# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The same question has the same answer in every form: directory, pack, URL, name, bundle."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securetrain.artifacts import Expectation, verify_path
from securetrain.artifacts.model.oms import sign_model
from securetrain.artifacts.model.signers import ModelRoots, read_signer
from securetrain.artifacts.saved.folder import sign_folder
from securetrain.artifacts.statement.statements import (
    DatasetRef,
    Parent,
    PolicyRef,
    digest_of,
    sign,
)
from securetrain.artifacts.tree.layout import STATEMENT
from securetrain.chain import judging, kept, verifying
from securetrain.chain.documents import Credential
from securetrain.chain.judging import Judgement
from securetrain.chain.links import verified
from securetrain.chain.packing import pack
from securetrain.chain.verdict import Verdict
from securetrain.chain.verifying import Known, Options, Signing
from securetrain.core import CODES, ExitCode
from securetrain.core.errors import UsageError
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.policy.load import load_policy
from securetrain.report import verification
from tests.chain.test_packs import LIES
from tests.chain.worlds import LATER, NOW, SHOWN, Run, Whole, policy, trust_bytes
from tests.s3_store import stored


@pytest.mark.forgery
@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_alike_in_every_form(tmp_path: Path, name: str) -> None:
    """Every link that is said to be broken, with or without a policy, and every missing one that
    the policy requires, in a directory, its pack, at its URL, and by the name that a catalogue
    gives it; without a policy, what leads to the checkpoint is looked for beside it.
    """
    run = Run(tmp_path / "run").saved(3)
    run.save(LIES[name][1](run))
    path = run.pack()
    named = Expectation(digest=digest_of(run.made[-1]), statement=run.statements[-1])
    with stored(run.root) as url:
        for asked in (None, policy(*SHOWN, depth="checkpoint"), policy(*SHOWN)):
            packed = run.verify(path, policy=asked)
            told = sorted(one.code for one in packed.problems)
            forms = {
                "directory": run.beside(asked),
                "URL": run.beside(asked, url),
                "name": run.beside(asked, url, expect=named),
            }
            states = [one.state for one in packed.judged[0].verdicts.values()]
            for form, found in forms.items():
                assert sorted(one.code for one in found.problems) == told, form
                assert [one.state for one in found.judged[0].verdicts.values()] == states, form
            assert (LinkState.BROKEN in states) <= bool(told)


@pytest.fixture
def whole(tmp_path: Path) -> Whole:
    made = Whole(tmp_path / "run")
    (tmp_path / "trust.json").write_bytes(made.trust_bytes())
    for _ in range(2):
        made.save_whole()
    return made


def asked(
    whole: Whole, path: Path | str, expect: Expectation | None = None, **more: Any
) -> Verdict:
    whole.keep()
    options, trust = Options(**more), whole.root.parent / "trust.json"
    return verifying.verify(path, expect, trust=trust, now=LATER, options=options)


def claiming(whole: Whole) -> Path:
    """Signed by the checkpoint's own key: nodes better than the evidence beside it shows."""
    nodes = [msgspec.structs.replace(one, tier=NodeTier.TEE_GPU) for one in whole.said().nodes]
    return whole.save_whole(nodes=nodes)


@pytest.mark.forgery
def test_a_claim_that_evidence_contradicts_refuses_without_a_policy(whole, monkeypatch) -> None:
    honest = asked(whole, max((whole.root / "checkpoints").iterdir()))
    assert honest.ok, honest.problems
    path = claiming(whole)
    assert verify_path(path, trust=whole.trust(), policy=None, now=LATER).ok, "its bytes hold"
    found = asked(whole, path)
    assert found.exit_code is ExitCode.LINEAGE
    assert {one.code for one in found.problems} == {"ST-CHAN-010"}
    assert asked(whole, whole.pack()).exit_code is ExitCode.LINEAGE
    monkeypatch.setattr(verifying, "judge_chain", lambda *_: Judgement())
    assert asked(whole, path).ok, "the control"


def test_the_answer_says_of_each_claim_whose_word_it_is(whole: Whole) -> None:
    newest = max((whole.root / "checkpoints").iterdir())
    document = verification.verified(asked(whole, newest))
    states = {name: one["state"] for name, one in document.data["links"].items()}
    assert states.keys() == set(map(str, ChainLink))
    assert states["nodes"] == states["dataset"] == states["parents"] == "verified"
    assert states["code"] == "missing"
    assert states["replay"] == "not asked"
    text = {row.name: row.text for section in document.sections for row in section.rows}
    assert text["node"].endswith("(verified)")
    assert text["dataset"].endswith("(verified)")
    # Outside of its run, nothing shows what the statement says.
    alone = whole.root.parent / "elsewhere" / "deeper" / newest.name
    alone.parent.mkdir(parents=True)
    newest.rename(alone)
    document = verification.verified(asked(whole, alone))
    assert document.code == ExitCode.OK
    text = {row.name: row.text for section in document.sections for row in section.rows}
    for name in ("node", "dataset", "made under", "gradients"):
        assert text[name].endswith("(the signer's word)"), text[name]


def test_floors_are_not_raised_by_a_checkpoint_whose_evidence_is_broken(whole: Whole) -> None:
    floors = whole.root.parent / "floors.json"
    old = max((whole.root / "checkpoints").iterdir())
    assert not asked(whole, claiming(whole), known=Known(floors=floors)).ok
    assert asked(whole, old, known=Known(floors=floors)).ok


QUESTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "the step": ({"step": 20}, ""),
    "an older step": ({"step": 10}, "ST-CKPT-127"),
    "a later step": ({"step": 30}, "ST-CKPT-127"),
    "the dataset's name": ({"dataset": "prose"}, ""),
    "another name": ({"dataset": "verse"}, "ST-CKPT-173"),
    "another dataset": ({"dataset": "ab" * 32}, "ST-CKPT-173"),
    "the policy": ({"policy": "baseline"}, ""),
    "another policy": ({"policy": "hardened"}, "ST-CKPT-174"),
    "a policy of another digest": ({"policy": "ab" * 32}, "ST-CKPT-174"),
    "the run": ({"run": "job-1"}, ""),
    "another run": ({"run": "job-2"}, "ST-CKPT-125"),
    "another signer": ({"signer": "ab" * 32}, "ST-CKPT-128"),
}


@pytest.mark.forgery
def test_the_question_has_one_answer_in_every_form(whole: Whole, subtests: pytest.Subtests) -> None:
    """Where a name is expected of its dataset, the dataset's own statement must show it."""
    newest, path = max((whole.root / "checkpoints").iterdir()), whole.pack()
    with stored(whole.root) as url:
        places = {"a directory": newest, "a pack": path}
        places["a store"] = f"{url}/checkpoints/{newest.name}"  # type: ignore[assignment]
        for name, (fields, code) in QUESTIONS.items():
            with subtests.test(name):
                found = {
                    str(one.form): ({each.code for each in one.problems}, one.exit_code)
                    for one in (asked(whole, at, Expectation(**fields)) for at in places.values())
                }
                exit_code = CODES[code].exit if code else ExitCode.OK
                assert found == dict.fromkeys(places, ({code} - {""}, exit_code))
        answers = {asked(whole, at).answer for at in places.values()}
        lines = [
            {(one.name, one.text, one.state) for one in asked(whole, at).lines()}
            for at in places.values()
        ]
    (answer,) = answers
    assert answer.startswith(
        "Step 20 of run job-1, trained on prose by 2 tpm nodes under baseline: verified; not shown"
    )
    assert "environment" in answer.partition("not shown")[2]
    assert lines[0] == lines[2], "a URL says what its directory says"
    assert {one for one in lines[1] if one[0] not in {"digest", "holds"}} <= lines[0]
    shutil.rmtree(whole.root / "data")
    named = asked(whole, newest, Expectation(dataset="prose"))
    assert {one.code for one in named.problems} == {"ST-CHAN-015"}
    digest = Expectation(dataset=whole.dataset.digest)
    assert asked(whole, newest, digest).ok


@pytest.mark.forgery
def test_what_lies_beside_a_checkpoint_speaks_in_a_store_too(whole: Whole) -> None:
    """A record that it was set aside; and no head where a policy asks for one."""
    newest, trust = max((whole.root / "checkpoints").iterdir()), whole.trust()
    heads = policy(require_head=True)
    with stored(whole.root) as url:
        place = f"{url}/checkpoints/{newest.name}"
        found = [
            verifying.verify(one, trust=trust, policy=heads, now=LATER) for one in (newest, place)
        ]
        assert [{p.code for p in one.problems} for one in found] == [{"ST-CKPT-152"}] * 2
        assert asked(whole, place).ok, "the control"
        with pytest.raises(UsageError, match="there is no such directory"):
            asked(whole, f"{place}1")
    (newest / "quarantine.json").write_bytes(b"{}")
    with stored(whole.root) as url:
        for one in (newest, f"{url}/checkpoints/{newest.name}"):
            assert {p.code for p in asked(whole, one).problems} == {"ST-CKPT-160"}


def test_a_membership_without_its_certificate_is_missing_and_not_broken(whole: Whole) -> None:
    """What is not there refuses nobody who does not ask for it; a broken link refuses everybody."""
    newest, tag = max((whole.root / "checkpoints").iterdir()), Credential.__struct_config__.tag
    assert asked(whole, newest).ok
    for one in (whole.root / "evidence").iterdir():
        if str(tag).encode() in one.read_bytes():
            one.unlink()
    for rules, ok in (None, True), (policy("membership", depth="checkpoint"), False):
        found = verifying.verify(newest, trust=whole.trust(), policy=rules, now=LATER)
        assert found.ok is ok, found.problems
        assert found.judged[0].verdicts[ChainLink.MEMBERSHIP].state is LinkState.MISSING


def of_a_script(whole: Whole) -> tuple[Path, Options]:
    (whole.root / "out").mkdir()
    path = whole.root / "out" / "model.pt"
    path.write_bytes(b"weights")
    sign_folder(path.parent, key=whole.key, run="job-1", step=20, now=NOW)
    return path.parent, Options()


def bundled(whole: Whole) -> tuple[Path, Options]:
    path, key = whole.root / "model", whole.root / "maker.key"
    path.mkdir()
    (path / "config.json").write_bytes(b"{}")
    public = whole.root / "maker.pem"
    public.write_bytes(PrivateKey.create(key, KeyKind.P256).public.pem)
    sign_model(path, path / "model.sig", read_signer(str(key), None, (), lambda _: b""))
    roots = ModelRoots(public_key=public)
    return path, Options(signing=Signing(bundle=path / "model.sig", roots=roots))


@pytest.mark.forgery
@pytest.mark.parametrize("form", [of_a_script, bundled])
def test_what_binds_no_evidence_is_refused_where_a_link_is_required(whole: Whole, form) -> None:
    """Both ended with 0 or passed the policy over: nothing in them leads back to a run."""
    path, options = form(whole)

    def codes(asked: Any) -> set[str]:
        found = verifying.verify(
            path, trust=whole.trust(), policy=asked, now=LATER, options=options
        )
        assert found.ok is not bool(found.problems)
        return {one.code for one in found.problems}

    assert codes(policy("nodes", "policy")) - codes(policy()) == {"ST-CHAN-010", "ST-CHAN-012"}
    assert codes(load_policy("hardened")) >= {"ST-CKPT-121", "ST-CKPT-122"}
    assert codes(None) == set(), "the control"


def evidence_is_lost(whole: Whole, said: Any, link: str) -> Any:
    (whole.root / "evidence" / getattr(said.bound, link)).unlink(missing_ok=True)
    return said


HEX = st.text("0123456789abcdef", min_size=64, max_size=64)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "tier": st.sampled_from(
        [NodeTier.TEE, NodeTier.TEE_GPU, NodeTier.VTPM, NodeTier.SELF_ASSERTED]
    ),
    "result": HEX,
    "node": st.sampled_from(["spiffe://x/job/j/node/n", "other", "spiffe://job-1"]),
    "ranks": st.sampled_from([[], [0, 3], [1]]),
    "run_id": st.sampled_from(["job-2", "", "job-1 "]),
    "epoch": st.sampled_from([None, 0, 2]),
    "seq": st.just(0),  # its parent's; a number above that may have been passed over
    "policy": st.builds(PolicyRef, id=st.sampled_from(["dev", "hardened"]), digest=HEX),
    "dataset": st.builds(DatasetRef, name=st.just("prose"), digest=HEX),
    "named": st.sampled_from(["licensed-prose", "Prose"]),
    "parents": st.lists(st.builds(Parent, digest=HEX), min_size=1, max_size=1),
    "membership": HEX,
    "bound policy": HEX,
    "job": HEX,
    "bound dataset": HEX,
    "bound parents": st.lists(HEX, min_size=1, max_size=1),
    "lost": st.sampled_from(["membership", "policy", "job"]),
}


def lie(whole: Whole, honest: Any, field: str, value: Any) -> Any:
    """The honest statement with one word changed; or its evidence with one piece less."""
    replace = msgspec.structs.replace
    if field == "lost":
        return evidence_is_lost(whole, honest, value)
    if field in {"tier", "result", "node", "ranks"}:
        first, *others = honest.nodes
        return replace(honest, nodes=[replace(first, **{field: value}), *others])
    if field == "named":
        return replace(honest, dataset=replace(honest.dataset, name=value))
    bound = field.removeprefix("bound ")
    if field != bound or field in {"membership", "job"}:
        return replace(honest, bound=replace(honest.bound, **{bound: value}))
    return replace(honest, **{field: value})


@pytest.fixture(scope="module")
def told(tmp_path_factory: Any) -> tuple[Whole, list[str]]:
    """A run, and the links of its newest checkpoint that evidence shows."""
    made = Whole(tmp_path_factory.mktemp("told") / "run")
    for _ in range(2):
        path = made.save_whole()
    made.keep()
    (judged, *_) = verifying.verify(path, trust=made.trust(), now=LATER).judged
    return made, [str(link) for link in ChainLink if judged.shows(link)]


def in_every_form(run: Whole, links: list[str], said: Any, key: PrivateKey) -> list[Verdict]:
    """The newest checkpoint with another statement: its directory, pack and URL."""
    newest, place = max((run.root / "checkpoints").iterdir()), run.root / "drawn.stpack"
    statement, asked = newest / STATEMENT, policy(*links, depth="checkpoint")
    before, keys = statement.read_bytes(), [run.key, key][: 1 + (key is not run.key)]
    fooled = trust_bytes(run.roles.root, {**run.named(), TrustRole.CHECKPOINT: keys})
    try:
        statement.write_bytes(sign(said, newest.name, key))
        pack(newest, place, trust=TrustRoot.parse(fooled, LATER))
        with stored(run.root) as url:
            forms: list[Path | str] = [newest, place, f"{url}/checkpoints/{newest.name}"]
            trust = run.trust()
            return [verifying.verify(at, trust=trust, policy=asked, now=LATER) for at in forms]
    finally:
        statement.write_bytes(before)
        place.unlink(missing_ok=True)
        run.keep()


@pytest.mark.forgery
@settings(max_examples=40)
@given(data=st.data())
def test_a_lie_that_is_drawn_is_refused_alike_and_never_taken(
    told: tuple[Whole, list[str]], data: Any
) -> None:
    """Any word of the statement that evidence binds, by the checkpoint's key or a stranger's."""
    run, links = told
    field = data.draw(st.sampled_from(sorted(FIELDS)))
    value = data.draw(FIELDS[field])
    key = PrivateKey.generate() if data.draw(st.booleans()) else run.key
    found = in_every_form(run, links, lie(run, run.made[-1], field, value), key)
    codes = [sorted({one.code for one in each.problems}) for each in found]
    assert codes[0] == codes[1] == codes[2], (field, value)
    assert not any(one.ok for one in found), (field, value)
    assert len({one.exit_code for one in found}) == 1


def test_an_honest_statement_is_taken_and_a_lie_where_nobody_judges(
    told: tuple[Whole, list[str]], monkeypatch: Any
) -> None:
    """The controls of the one above."""
    run, links = told
    assert {"nodes", "membership", "policy", "job", "dataset", "parents"} <= {*links}
    assert all(one.ok for one in in_every_form(run, links, run.made[-1], run.key))
    monkeypatch.setattr(judging, "judge", lambda link, *_: verified(link, "anything"))
    lied = lie(run, run.made[-1], "tier", NodeTier.TEE_GPU)
    assert all(one.ok for one in in_every_form(run, links, lied, run.key))


@pytest.mark.forgery
def test_a_dataset_has_the_name_that_its_own_signer_gave(whole: Whole, monkeypatch: Any) -> None:
    """With the checkpoint's key: the data is another one than the statement's words say."""
    ref = DatasetRef(name="licensed-prose", digest=whole.dataset.digest)
    path = whole.save_whole(dataset=ref)
    expect = Expectation(dataset="licensed-prose")
    found = asked(whole, path, expect)
    assert {one.code for one in found.problems} == {"ST-CHAN-015"}
    assert found.exit_code is asked(whole, whole.pack(), expect).exit_code
    monkeypatch.setattr(kept, "broken", lambda *_, **__: verified(ChainLink.DATASET, "anything"))
    assert asked(whole, path, expect).ok, "the control"
