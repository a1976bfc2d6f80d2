# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A statement that is proven to stand in the transparency log.

The proof lies beside the directory, not in it (`identity.log.proof`): it is made after the
directory was signed. Whatever it lacks is 180, with the log's own reason; what it proves is an
index, and by when enough witnesses had seen it there, which is later than the signature.
"""

from dataclasses import dataclass
from datetime import datetime

from securetrain.artifacts.layout import STATEMENT, Kind
from securetrain.artifacts.problems import Problem
from securetrain.core.errors import IdentityError
from securetrain.identity.log.checkpoint import LogPolicy
from securetrain.identity.log.proof import Logged, verify_logged
from securetrain.identity.trust import TrustRoot


@dataclass(frozen=True, slots=True)
class LogProof:
    """A proof that nobody has judged yet."""

    data: bytes

    def judge(self, statement: bytes, kind: Kind, trust: TrustRoot, now: datetime) -> Logged:
        """Verify that a statement was logged, in the log that the trust root names.

        Raises:
            IntegrityError: 180.
        """
        try:
            policy = LogPolicy.of_trust(trust)
            return verify_logged(statement, self.data, trust.keys, policy, now)
        except IdentityError as error:
            raise Problem(
                code=kind.code(180), what=f"{error.code}: {error.what}", file=STATEMENT
            ).error() from error
