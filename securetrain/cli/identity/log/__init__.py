# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
r"""Keep a transparency log, which cannot tell two people two stories unnoticed.

Examples:
  securetrain log init log --origin log.example/team --key log.pem
  securetrain log append log statement.json --key log.pem --trust trust/root.json
  securetrain log witness log --key node-3.pem --name node-3.example --state /var/lib/witness \
      --trust trust/root.json
  securetrain log witness-key
  securetrain log checkpoint log --trust trust/root.json
  securetrain log prove log statement.json --trust trust/root.json --out statement.tlog-proof
  securetrain log verify statement.json --proof statement.tlog-proof --trust trust/root.json

The trust root names the log (its origin and keys) and its witnesses: how many of them must have
cosigned is the threshold of the role witness. The folder has the layout of https://c2sp.org, and
may be served by any web server.

A run under a policy with checkpoint.log logs its checkpoints and keeps the proofs itself, and the
agents of its nodes are witnesses: 'witness-key' prints what the policy names this machine by.

Exit codes: 0 it held; 2 bad arguments, or a key that cannot be used; 10 not an envelope; 11 a
signature does not verify; 12 a signer or trust root that is not trusted; 15 not cosigned lately; 18
no proof: not in the log, too few witnesses, a log that shrank or shows two histories, or damaged
files; 20 a file cannot be read or written.
"""

from securetrain.cli.command import VerbGroup

command = VerbGroup(
    __name__,
    __doc__,
    {
        "entries": ("init", "append", "checkpoint"),
        "proofs": ("prove", "verify"),
        "witnesses": ("witness", "witness-key"),
    },
)
