# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
r"""Keep a catalogue: names of artifacts, signed by several people, that never goes back.

Examples:
  securetrain catalogue init models --root-key root.key --signer alice.pub.pem \
      --signer bob.pub.pem --threshold 2 --publisher ci.pub.pem --out root.json
  securetrain catalogue add models prod-model models/llama-4000 --catalogue-root root.json \
      --trust trust.json
  securetrain catalogue sign models --catalogue-root root.json --key alice.key
  securetrain catalogue sign models --catalogue-root root.json --key bob.key --key ci.key
  securetrain catalogue show models --catalogue-root root.json
  securetrain catalogue export models layout --catalogue-root root.json
  securetrain verify prod-model@models --catalogue-root root.json --trust trust.json

The metadata lies in the folder 'catalogue' of FOLDER, in the form of TUF; the artifacts lie
anywhere else below FOLDER. Copy FOLDER to a web server's or object store's prefix as it is, or the
metadata into a registry ('export' writes an OCI layout). Readers are given root.json once, from
another place; each machine keeps what it has seen, and no catalogue goes back behind that.

Exit codes: 0 done; 2 bad arguments, or a key that is not of this catalogue; 10 not a catalogue; 11
not signed by enough; 12 no such name; 14 an entry leads out of the folder; 15 expired, or older
than what was seen.
"""

from securetrain.cli.command import VerbGroup

command = VerbGroup(
    __name__,
    __doc__,
    {"metadata": ("init",), "drafts": ("add", "remove"), "signed": ("sign", "show", "export")},
)
