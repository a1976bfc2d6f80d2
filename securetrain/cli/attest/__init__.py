# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
r"""Collect, look at, verify and enroll the evidence of nodes.

A bundle is what a node's hardware says, in a file. 'run' asks the same of every node that
joins; here it is done by hand, to enroll nodes and to find out why one is refused.

From a new machine to a node that must prove itself:
  securetrain attest keygen operator.pem
  securetrain attest collect --node node-17 --out node-17.json
  securetrain attest show node-17.json
  securetrain attest challenge node-17.json --to-enroll \
      --out question.json --secret question.secret
  securetrain attest collect --node node-17 --question question.json \
      --out answer.json
  securetrain attest enroll answer.json --secret question.secret \
      --reference-values fleet.json --key operator.pem --root maker.pem \
      --learn-boot
  securetrain attest challenge node-17.json --policy fleet.yaml \
      --out question.json --secret question.secret
  securetrain attest collect --node node-17 --question question.json \
      --out answer.json
  securetrain attest verify answer.json --policy fleet.yaml \
      --secret question.secret

'collect' runs on the node, all else where the operator's key is.
"""

from securetrain.cli.command import VerbGroup

command = VerbGroup(
    __name__,
    __doc__,
    {
        "bundles": ("keygen", "collect", "show", "challenge"),
        "verdicts": ("verify", "explain"),
        "enroll": ("enroll",),
        "reference": ("values",),
        "images": ("images",),
        "cloud": ("google",),
        "ima": ("ima-list", "ima-set"),
        "cache": ("cache",),
        "bars": ("revocations", "revoke", "restore"),
    },
)
