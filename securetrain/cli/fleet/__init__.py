# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
r"""Admit machines to a fleet by what they prove, and look after those that are in it.

From nothing to a fleet:
  securetrain fleet admit --csv nodes.csv --group gpu-h100-2026.11 \
      --root infineon.pem --listen 10.0.0.1:29500 --out tokens.csv \
      --reference-values fleet.json --key operator.pem
  # on each machine, as root, with its own token:
  securetrain fleet join sf1_eyJ...

Afterwards:
  securetrain fleet status --policy fleet.yaml --run runs/run-7-coordinator
  securetrain fleet use postgresql://coordinator@db.example/fleet

'join' runs on the node, all else where the operator is. 'attest values' takes things out again.
"""

from securetrain.cli.command import VerbGroup

command = VerbGroup(
    __name__,
    __doc__,
    {
        "admission": ("admit", "serve"),
        "join": ("join",),
        "proven": ("show", "sign", "reject"),
        "status": ("decisions", "status", "use"),
    },
)
