# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The keys of the launcher's signing socket, and signatures by them as replies have them."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass

from securetrain.artifacts import RankSigner
from securetrain.identity.keys import PairSigner, Signer
from securetrain.identity.signing import Handed, Signed, Welcome
from securetrain.launch.node_files import Whole
from securetrain.launch.signing_peers import Worker
from securetrain.launch.signing_rules import Circumstances
from securetrain.ledger import WriterRole


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The keys that the service signs with."""

    checkpoint: Signer
    rank: RankSigner | None
    """None where nobody certifies a key for this node's ranks."""
    ledgers: Mapping[WriterRole, Signer]
    """By the workers' two roles."""


def signed(key: Signer, message: bytes, *, whole: bool = False) -> Signed:
    """Sign; `whole` with a pair's companion too."""
    made = (
        key.sign_all(message)
        if whole and isinstance(key, PairSigner)
        else ((key.key_id, key.sign(message)),)
    )
    sigs = [base64.b64encode(signature).decode() for _, signature in made]
    return Signed(key.key_id, sigs[0], sigs[1] if len(sigs) > 1 else "")


def handed(key: Signer, whole: Whole | None) -> Handed:
    """The reply to a rank's word on its file: with the node's signature when they are all there."""
    if whole is None:
        return Handed()
    made = signed(key, whole.message)
    return Handed(keyid=made.keyid, ranks=whole.ranks, leaves=whole.leaves, sig=made.sig)


def spki(key: Signer) -> str:
    """A key's public half, in base64."""
    return base64.b64encode(key.public.spki).decode()


def companion_of(key: Signer) -> str:
    """The public half of a pair's other key, in base64; empty without."""
    companion = key.public.companion
    return "" if companion is None else base64.b64encode(companion.spki).decode()


def welcome(keys: Keys, here: Circumstances, worker: Worker, nodes: tuple[int, ...]) -> Welcome:
    """The launcher's word on a worker: who it is, and under which keys will be signed for it."""
    key, rank, saves = keys.checkpoint, keys.rank, here.signs_saves
    return Welcome(
        run_id=here.run_id,
        rank=worker.rank,
        world_size=worker.world_size,
        checkpoint_key=spki(key) if worker.rank == 0 else "",
        checkpoint_companion=companion_of(key) if worker.rank == 0 else "",
        rank_key="" if rank is None else spki(rank.key),
        rank_certificate="" if rank is None else rank.certificate,
        nodes=nodes,
        saved_key=spki(key) if saves else "",
        saved_companion=companion_of(key) if saves else "",
    )
