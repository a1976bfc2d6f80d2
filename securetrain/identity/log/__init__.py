# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The transparency log: an append-only list that cannot tell two people two stories unnoticed.

========== ===================================================================================
module     what it is for
========== ===================================================================================
merkle     RFC 6962 trees: roots, inclusion and consistency proofs. Pure.
note       C2SP signed notes and cosignatures. Pure.
checkpoint what a log says of itself, and who cosigned it; judged by a `LogPolicy`. Pure.
entry      what stands in the log for a DSSE envelope. Pure.
proof      proof that an envelope was logged, in one file (C2SP tlog-proof). Pure.
tiles      where hashes and entries lie (C2SP tlog-tiles).
store      the log's folder: append, read, prove.
witness    a node that cosigns only what extends what it has seen.
========== ===================================================================================

The usual way through it: ``Log.append(envelope)`` returns an index; ``Witness.cosign`` on nodes and
``Log.add_cosignatures``; ``Log.prove(index)`` makes the proof, which travels with the artifact; and
``verify_logged(envelope, proof, LogPolicy.from_trust_root(trust))`` returns the proven index and
times for ``TrustRoot.verify(..., logged=found.index)``.

The same, with a log that nobody watches:

>>> import tempfile
>>> from datetime import UTC, datetime
>>> from pathlib import Path
>>> from securetrain.identity import dsse
>>> from securetrain.identity.keys import PrivateKey
>>> from securetrain.identity.log import Log, LogPolicy, verify_logged
>>> key, signer = PrivateKey.generate(), PrivateKey.generate()
>>> policy = LogPolicy(
...     origin="log.example/r7", keys={key.key_id: key.public}, witnesses={}, quorum=0
... )
>>> folder = Path(tempfile.mkdtemp(), "log")
>>> _ = Log.create(folder, policy.origin, key)
>>> log = Log(folder, policy)
>>> envelope = dsse.sign(b"{}", "application/example", [signer])
>>> known = {signer.key_id: signer.public}
>>> index = log.append(envelope, known, key)
>>> verify_logged(envelope, log.prove(index), known, policy, datetime.now(UTC)).index
0
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
