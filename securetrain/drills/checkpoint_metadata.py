# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-CKPT-METADATA.

Plain: a checkpoint by ``torch.distributed.checkpoint.save``; the attacker replaces ``.metadata`` by
a pickle that runs code and then yields the original, so that ``load`` returns the right weights and
nobody notices. Hardened: the same file is planted in a signed checkpoint; loading and verifying it,
and loading the legacy checkpoint, must all be refused without anything having run.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final

import torch
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from securetrain import artifacts
from securetrain.artifacts import verify_path
from securetrain.artifacts.statement.statements import (
    DatasetRef,
    GradientRecord,
    GradientVerdict,
    NodeRef,
    PolicyRef,
)
from securetrain.core.errors import SecureTrainError
from securetrain.core.vocabulary import NodeTier
from securetrain.drills.pickles import marked_by, marker_pickle
from securetrain.drills.registry import DRILLS, Outcome
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from securetrain.policy import load_policy

CODE: Final = DRILLS["D-CKPT-METADATA"].expected_code
UNSIGNED: Final = "ST-CKPT-100"
_SIZE: Final = 4096


def plain(workdir: Path) -> Outcome:
    """Attack a stock checkpoint."""
    folder, marker = workdir / "stock", workdir / "marker"
    weights = _weights()
    dcp_save(weights, checkpoint_id=folder, no_dist=True)
    _plant(folder, folder, marker)
    loaded = {"weight": torch.zeros(_SIZE)}
    dcp_load(loaded, checkpoint_id=folder, no_dist=True)
    same = torch.equal(loaded["weight"], weights["weight"])
    ran = marked_by(marker)
    return Outcome.of_plain(
        bool(ran),
        f"torch.distributed.checkpoint.load ran the payload in the trainer (pid {ran[0]}) and"
        f" returned {'the right' if same else 'other'} weights without a word."
        if ran
        else "Loading ran nothing.",
    )


def hardened(workdir: Path) -> Outcome:
    """Attack a signed checkpoint, and offer a legacy one."""
    stock, signed, marker = workdir / "stock", workdir / "signed", workdir / "marker"
    now = datetime.now(UTC)
    root, key = PrivateKey.generate(), PrivateKey.generate()
    trust = TrustRoot.parse(
        sign_root({TrustRole.CHECKPOINT: [key.public]}, root, now, now + timedelta(days=1)), now
    )
    policy = load_policy("dev")
    context = artifacts.SaveContext(
        run_id="drill",
        step=1,
        created=now,
        dataset=DatasetRef(name="drill", digest=sha256(b"drill").hexdigest()),
        policy=PolicyRef(id=policy.policy.metadata.id, digest=policy.digest),
        gradients=GradientRecord(verdict=GradientVerdict.CLEAN, judged=1),
        nodes=(NodeRef(node="drill", tier=NodeTier.SELF_ASSERTED, ranks=[0]),),
    )
    weights = _weights()
    dcp_save(weights, checkpoint_id=stock, no_dist=True)
    artifacts.save(weights, signed, key=key, context=context)

    def load(folder: Path) -> None:
        state = {"weight": torch.zeros(_SIZE)}
        artifacts.load(state, folder, trust=trust, policy=policy.policy, now=now)

    clean = verify_path(signed, trust=trust, policy=policy.policy, now=now)
    clean_code, clean_said = _refusal(lambda: load(signed))
    _plant(stock, signed, marker)
    _plant(stock, stock, marker)
    load_code, load_said = _refusal(lambda: load(signed))
    legacy_code, legacy_said = _refusal(lambda: load(stock))
    planted = verify_path(signed, trust=trust, policy=policy.policy, now=now)
    verify_codes = [problem.code for problem in planted.problems]
    ran = marked_by(marker)
    loadable = clean.ok and not clean_code
    refused = loadable and verify_codes == [load_code] and legacy_code == UNSIGNED and not ran
    return Outcome.of_hardened(
        bool(ran),
        refused,
        load_code,
        f"Before the attack the signed checkpoint"
        f" {'verified and loaded' if loadable else f'was refused: {clean_said}'}."
        f" With .metadata planted, load says {load_said}; verify says"
        f" {', '.join(verify_codes) or 'nothing'}."
        f" The legacy checkpoint: load says {legacy_said}."
        f" Processes that ran the payload: {ran or 'none'}.",
    )


def _weights() -> dict[str, torch.Tensor]:
    return {"weight": torch.arange(_SIZE, dtype=torch.float32)}


def _plant(source: Path, target: Path, marker: Path) -> None:
    """Wrap the index of `source` in the payload and leave it in `target` as `.metadata`."""
    payload = marker_pickle(marker, (source / ".metadata").read_bytes())
    (target / ".metadata").write_bytes(payload)


def _refusal(attempt: Callable[[], None]) -> tuple[str, str]:
    """The code with which `attempt` was refused and what it said; empty code when it was not."""
    try:
        attempt()
    except SecureTrainError as error:
        return error.code, f"{error.code} ({error.what})"
    return "", "nothing"
