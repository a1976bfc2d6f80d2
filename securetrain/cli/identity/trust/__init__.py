# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
r"""Keep a trust root: which keys may sign what, by whose word it changes.

Examples:
  securetrain trust init trust --key root-1.pem --key root-2.pem --threshold root=2 \
      --add checkpoint=run.pem.pub --add log=log.pem.pub --add witness=w1.pem.pub \
      --log-origin log.example/team
  securetrain trust rotate trust --key root-1.pem --key root-2.pem --add checkpoint=new.pem.pub
  securetrain trust revoke trust 3fa9c2 --valid-before 1207 --reason "replaced" --key root-1.pem
  securetrain trust sign trust --key root-2.pem
  securetrain trust show trust/root.json
  securetrain trust update ~/.securetrain/trust --pin trust/root.json
  securetrain trust update ~/.securetrain/trust --from trust

Roles: root, checkpoint, dataset, ledger, operator, node, log, witness, ci. Keys are PEM files (of
the public half, but for --key) or URIs (see 'securetrain key'). --identity gives a role to whom a
Sigstore instance vouches for, in place of a key. A version that too few root keys have signed stays
a draft; the others sign it with 'trust sign', on machines of their own.

Exit codes: 0 done, or kept as a draft; 2 bad arguments, keys that cannot be used, or it exists
already; 12 not a good trust root, or it does not follow from the one before; 15 an older one; 20 a
file cannot be read or written.
"""

from securetrain.cli.command import VerbGroup

command = VerbGroup(
    __name__,
    __doc__,
    {"versions": ("init", "rotate", "revoke", "sign"), "current": ("show", "update")},
)
