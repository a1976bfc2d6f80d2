# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-CKPT-SWAP.

Plain: the checkpoint of another run is copied over the one that is meant, and stock torch loads
it. Hardened: thirty signed artifacts in the place of others (`swap_cases`). Each is taken from who
does not say which one is meant, which is the control, and must be refused by its own code to who
does.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import torch
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from securetrain.drills.registry import DRILLS, Outcome, Side

CODE: Final = DRILLS["D-CKPT-SWAP"].expected_code


def plain(workdir: Path) -> Outcome:
    """Copy one stock checkpoint over another."""
    for name, value in (("prod", 1.0), ("toy", 2.0)):
        dcp_save({"weight": torch.full((4,), value)}, checkpoint_id=workdir / name, no_dist=True)
    shutil.rmtree(workdir / "prod")
    shutil.copytree(workdir / "toy", workdir / "prod")
    state = {"weight": torch.zeros(4)}
    dcp_load(state, checkpoint_id=workdir / "prod", no_dist=True)
    taken = state["weight"].tolist() == [2.0] * 4
    return Outcome.of_plain(
        taken,
        "torch.distributed.checkpoint.load took the weights of run toy for those of run prod."
        if taken
        else "The weights of run prod were loaded.",
    )


def hardened(workdir: Path) -> Outcome:
    """Swap thirty signed artifacts."""
    if find_spec("tuf") is None:
        return Outcome.not_made(Side.HARDENED, "tuf, for catalogues (the extra [catalogue])")
    from securetrain.drills.swap_cases import cases, code_of  # noqa: PLC0415 - needs tuf

    folder = workdir / "artifacts"
    folder.mkdir()
    codes, wrong, idle = [], [], []
    for case in cases(folder):
        control = code_of(case.taken)
        found = code_of(case.refused)
        codes.append(found)
        if control:
            idle.append(f"{case.name}: the control was refused by {control}")
        elif found.removeprefix("ST-") != case.code:
            wrong.append(f"{case.name}: {found or 'taken'} instead of {case.code}")
    told = "; ".join([*wrong, *idle]) or "every control was taken, and every swap refused"
    return Outcome.of_hardened(
        bool(wrong),
        not wrong and not idle and CODE in codes,
        CODE if CODE in codes else "",
        f"{len(codes)} swaps under one organisation's keys: {told}.",
    )
