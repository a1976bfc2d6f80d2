# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Run the conformance suite of OpenSSF Model Signing, and the vectors of its specification.

    python tools/conformance.py SUITE_DIR --spec SPEC_DIR

SUITE_DIR is a checkout of model-signing-conformance, SPEC_DIR one of model-signing-spec, whose
schemas the suite checks bundles with. The suite calls an adapter, which is this file again: it
turns the suite's words into those of ``securetrain sign --oms`` and ``securetrain verify``. The
packages that the suite uses must be there: ``pip install pytest jsonschema referencing sigstore``.

Cases that sign with the public Sigstore need its network and a token, and are left out; those that
only verify such bundles are run, with the trusted root that the package sigstore carries. The
suite asks only whether an adapter fails: a refusal for another reason passes it. The reason of each
is asserted by tests/artifacts/model/oms/test_conformance.py.

Ends with 0 when every case that can run offline passed, 1 when one failed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from securetrain.artifacts.model import bundle, manifest
from securetrain.core.errors import IntegrityError

ADAPTER: Final = "--adapter"
_RESULT: Final = "SECURETRAIN_CONFORMANCE_RESULT"
_TOKEN: Final = "not-a-token"  # noqa: S105 - tells the suite to run what only verifies
_PLUGIN: Final = """
import json, os
seen = {}
def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        seen[report.nodeid.rpartition("::")[2].partition(" | ")[0]] = report.outcome
def pytest_sessionfinish(session):
    with open(os.environ["SECURETRAIN_CONFORMANCE_RESULT"], "w") as file:
        json.dump(seen, file)
"""


def adapt(words: Sequence[str]) -> int:
    """One call of the suite."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["sign-model", "verify-model", "capabilities"])
    for name in (
        "method", "model-path", "bundle", "output-bundle", "private-key", "signing-cert",
        "public-key", "identity", "identity-provider", "identity-token",
    ):  # fmt: skip
        parser.add_argument(f"--{name}")
    for name in ("cert-chain", "ignore-paths"):
        parser.add_argument(f"--{name}", action="append", default=[])
    for name in ("ignore-unsigned-files", "use-staging"):
        parser.add_argument(f"--{name}", action="store_true")
    given = parser.parse_args(words)
    if given.verb == "capabilities":
        print(json.dumps({"flags": [], "hash_algorithms": ["sha256", "blake2b", "blake3"]}))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        make = _sign if given.verb == "sign-model" else _verify
        command = [sys.executable, "-m", "securetrain", *make(given, Path(scratch))]
        return subprocess.run(command, check=False).returncode


def _sign(given: Any, scratch: Path) -> list[str]:
    if given.method == "sigstore":
        raise SystemExit("signing keyless needs the network")
    key = scratch / "key.pem"  # keys that others may read are refused, and a checkout's are
    shutil.copyfile(given.private_key, key)
    key.chmod(0o600)
    words = ["sign", given.model_path, "--oms", "--key", str(key), "--bundle", given.output_bundle]
    if given.method == "certificate":
        words += ["--certificate", given.signing_cert]
        words += [word for file in given.cert_chain for word in ("--chain", file)]
    return words + _ignored(given)


def _verify(given: Any, scratch: Path) -> list[str]:
    words = ["verify", given.model_path, "--bundle", given.bundle]
    match given.method:
        case "key":
            words += ["--public-key", given.public_key]
        case "certificate":
            roots = scratch / "roots.pem"
            roots.write_bytes(b"\n".join(Path(one).read_bytes() for one in given.cert_chain))
            words += ["--ca", str(roots)]
        case _:
            words += ["--identity", given.identity, "--issuer", given.identity_provider]
    if given.ignore_unsigned_files:
        words.append("--ignore-unsigned")
    return words + _ignored(given)


def _ignored(given: Any) -> list[str]:
    return [word for path in given.ignore_paths for word in ("--ignore-paths", path)]


def run_suite(suite: Path, spec: Path) -> dict[str, str]:
    """The outcome of every case: passed, failed or skipped."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "oms_schemas").symlink_to((spec / "schemas").resolve())
        (place / "conformance_result.py").write_text(_PLUGIN, encoding="utf-8")
        adapter = place / "adapter"
        adapter.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" {ADAPTER} "$@"\n',
            encoding="utf-8",
        )
        adapter.chmod(0o700)
        result = place / "result.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "conformance_result"]
        command += ["-p", "no:cacheprovider", f"--entrypoint={adapter}", "test"]
        path = os.pathsep.join([folder, str(Path(__file__).resolve().parents[1])])
        env = {**os.environ, "PYTHONPATH": path, _RESULT: str(result), "SIGSTORE_ID_TOKEN": _TOKEN}
        done = subprocess.run(command, cwd=suite, env=env, check=False, capture_output=True)
        if not result.exists():
            raise SystemExit(f"the suite did not run:\n{done.stdout.decode()[-3000:]}")
        found: dict[str, str] = json.loads(result.read_text(encoding="utf-8"))
        if any(found[name] != "passed" and not is_live(name) for name in found):
            sys.stderr.write(done.stdout.decode()[-6000:])
        return found


def run_vectors(spec: Path) -> dict[str, str]:
    """The outcome of every test vector of the specification, which is valid or is not."""
    found = {}
    for file in sorted((spec / "test-vectors").glob("*/*/*.json")):
        try:
            read = bundle.parse(file.read_bytes(), file.name)
            manifest.read(read.payload, file.name)
            is_valid = True
        except IntegrityError:
            is_valid = False
        expected = file.parent.name == "valid"
        name = f"{file.parent.name}/{file.name}"
        found[name] = "passed" if is_valid == expected else "failed"
    return found


def is_live(name: str) -> bool:
    """Tell whether a case signs with the public Sigstore."""
    return name.startswith("test_roundtrip[") and "sigstore" in name


def main() -> int:
    """See the module."""
    if sys.argv[1:2] == [ADAPTER]:
        return adapt(sys.argv[2:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("suite", type=Path, metavar="SUITE_DIR")
    parser.add_argument("--spec", type=Path, required=True, metavar="SPEC_DIR")
    given = parser.parse_args()
    cases = run_suite(given.suite, given.spec)
    live = sorted(name for name in cases if is_live(name))
    offline = {name: outcome for name, outcome in cases.items() if name not in live}
    vectors = run_vectors(given.spec)
    for name, outcome in sorted({**offline, **vectors}.items()):
        print(f"{outcome:8} {name}")
    for name in live:
        print(f"{'left out':8} {name}: needs the public Sigstore")
    passed, of = Counter(offline.values())["passed"], len(offline)
    read = Counter(vectors.values())["passed"]
    print(f"suite: {passed} of {of} offline cases; vectors: {read} of {len(vectors)}")
    return 0 if passed == of and read == len(vectors) and of else 1


if __name__ == "__main__":
    sys.exit(main())
