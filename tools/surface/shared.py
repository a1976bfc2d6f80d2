# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Packs, catalogues, reference values and a fleet: what goes from one machine to others."""

from tools.surface.artifacts import FORMATS
from tools.surface.story import Story

TRUST = "trust/root.json"


def usage(story: Story) -> None:
    """Command lines of these verbs that are refused for their form."""
    run = story.run
    plain = "pack unpack replay export doctor follow schema"
    for verb in plain.split():
        run(verb)
        run(verb, "--json", "--no-such-option")
    for group in ("catalogue", "fleet", "cache", "attest values", "attest cache"):
        run(*group.split())
        run(*group.split(), "nonsense", "--json")
    run("fleet", "admit", "--json")
    run("fleet", "admit", "--node", "n", "--csv", "absent.csv")
    run("fleet", "serve", "--listen", "127.0.0.1:0", "--key", "k.pem")
    run("fleet", "sign")
    run("attest", "google", "f.json")
    run("attest", "ima-list", "--out", "x.json")
    run("attest", "ima-set", "f.json", "--key", "k", "--former-until", "never", "--no-former")
    run("verify", "x", "--at", "witness", "--trust", "t.json")
    run("verify", "x", "--bundle", "b", "--walk", "--trust", "t.json", "--policy", "dev")
    run("verify", "s3://bucket/x", "--scan", "--walk", "--trust", "t.json", "--json")
    run("verify", "name@place", "--catalogue", "place", "--json")
    run("sign", "x", "--dataset", "--key", "k", "--chain", "c.pem")
    run("sign", "x", "--keyless", "--key", "k")
    run("audit", "nonce")
    run("audit", "new", "nothing")
    run("audit", "more", "words")
    run("audit", "--explain", "st-net-011")
    run("audit", "--explain", "ST-XXX-999", "--json")
    run("audit", "--node", "--out", "audit.txt")
    run("audit", "--job", "job.yaml")
    run("schema", "policy")
    run("schema", "job", "--out", "job.schema.json")
    run("cache", "list", "--json")
    run("cache", "clear", "absent")


def values(story: Story) -> None:
    """Reference values looked at, changed and signed again."""
    run, here = story.run, story.here
    if not (here / "machines.json").exists():
        return
    shown = run("key", "show", "cache.pem", "--pem").splitlines()
    signed = ("--signed-by", "".join(shown[1:-1]))
    key = ("attest", "values"), ("machines.json", "--key", "cache.pem")
    run("attest", "values", "show", "machines.json", *signed)
    run("attest", "values", "show", "machines.json", *signed, "--json")
    for word, *more in (
        ("set", "boot.unjudged+=1"),
        ("set", "colour=red", "--json"),
        ("set", "x=1", "--group", "g", "--node", "n"),
        ("retire", "00" * 32),
        ("retire", "00" * 32, "--accept-until", "2020-01-01"),
        ("revoke", "ek:" + "0" * 64, "--json"),
        ("remove", "absent"),
        ("remove", "node-1", "--json"),
        ("sign", "--days", "9"),
    ):
        run(*key[0], word, *key[1], *more)
    run("attest", "images", "machines.json", "--key", "cache.pem", "--retire", "0" * 64, "--json")
    run("attest", "ima-set", "machines.json", "--key", "cache.pem", "--violations", "/a=log")
    run("attest", "google", "machines.json", "--key", "cache.pem", "--project", "p", "--json")
    run("attest", "values", "diff", "machines.json", *signed, "--json")
    run("attest", "explain", "ST-ATTS-213")
    run("attest", "explain", "ST-ATTS-213", "--json")
    run("attest", "revoke", "node:securetrain.local/n", "--reason", "sold")
    run("attest", "revocations", "--json")
    run("attest", "restore", "node:securetrain.local/n")
    run("attest", "restore", "node:securetrain.local/n")


def fleet(story: Story) -> None:
    """Tokens of a fleet that nobody uses."""
    run = story.run
    run("fleet", "status")
    run("fleet", "status", "--json", "--html", "fleet.html")
    run("fleet", "admit", "--node", "n")
    run("fleet", "admit", "--node", "n", "--advertise", "10.0.0.1:29500", "--out", "token.csv")
    run("fleet", "admit", "--node", "m", "--json")
    run("fleet", "show")
    run("fleet", "show", "n", "--json")
    run("fleet", "sign", "n", "--reference-values", "f.json", "--key", "attest.pem")
    run("fleet", "decisions")
    run("fleet", "decisions", "n", "--json")
    run("fleet", "reject", "n")
    run("fleet", "reject", "n")
    run("fleet", "join", "sf1_nonsense", "--json")


def catalogue(story: Story) -> None:
    """A name for a dataset, signed and asked for."""
    run, root = story.run, ("--catalogue-root", "catalogue-root.json")
    run("catalogue", "init", ".", "--root-key", "root.pem", "--signer", "other.pem.pub",
        "--out", "catalogue-root.json")  # fmt: skip
    run("catalogue", "add", ".", "corpus-name", "corpus", *root, "--trust", TRUST)
    run("catalogue", "add", ".", "nothing", "..", *root, "--trust", TRUST)
    run("catalogue", "sign", ".", *root, "--key", "other.pem", "--json")
    run("catalogue", "show", ".", *root)
    run("catalogue", "show", ".", *root, "--json")
    run("verify", "corpus-name@catalogue", "--catalogue", ".", *root, "--trust", TRUST)
    run("verify", "other-name@catalogue", "--catalogue", ".", *root, "--trust", TRUST, "--json")
    run("catalogue", "remove", ".", "corpus-name", *root, "--json")
    run("catalogue", "export", ".", "layout", *root)


def packs(story: Story) -> None:
    """A pack of the run's newest checkpoint: verified, unpacked, exported, replayed."""
    run, trust = story.run, ("--trust", "ran/trust.json")
    newest = "ran/checkpoints/step-00000004"
    run("pack", newest, *trust, "--out", "model.stpack", "--walk-in", "text", "--json")
    run("pack", newest, *trust, "--out", "full.stpack", "--walk-in", "text", "--weights",
        "--rows", "3-4", "--tables", "--trust-data", TRUST)  # fmt: skip
    run("pack", newest, *trust, "--out", "never", "--rows", "3-4", "--dataset")
    run("pack", newest, *trust, "--out", "never", "--rows", "4-3")
    for form in FORMATS:
        run("verify", "model.stpack", *trust, "--format", form)
    run("verify", "full.stpack", *trust, "--trust-data", TRUST, "--policy", "dev", "--json")
    run("verify", "full.stpack", *trust, "--at", "witness")
    run("verify", "full.stpack", *trust, "--walk", "--scan")
    run("verify", "full.stpack", *trust, "--expect-run", "other", "--json")
    run("verify", "full.stpack", *trust, "--vsa", "pack.vsa.json", "--trust-data", TRUST)
    run("unpack", "model.stpack", *trust, "--out", "nothing")
    run("unpack", "full.stpack", *trust, "--trust-data", TRUST, "--out", "unpacked", "--json")
    run("export", "full.stpack", *trust, "--format", "slsa-provenance-1", "--out", "p.json")
    run("export", newest, *trust, "--format", "cyclonedx-1.7", "--out", "c.json", "--json")
    run("report", "full.stpack", *trust)
    run("report", "full.stpack", *trust, "--html", "pack.html", "--json")
    run("report", "full.stpack", "--json")
    run("replay", "full.stpack", *trust, "--out", "r.json")
    run("replay", "full.stpack", *trust, "--sample", "0.5")
    run("replay", "full.stpack", *trust, "--in", "absent", "--json")
