# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain verify PATH --bundle FILE``: a model in the format of OpenSSF Model Signing."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from securetrain.cli.output import and_scan, show
from securetrain.cli.progress import progress_bar
from securetrain.cli.scan import print_briefly

if TYPE_CHECKING:
    from securetrain.artifacts.model.oms.model import ModelResult, ModelTrust

KEY_LIMIT: Final = 1 << 20
MAX_SHOWN: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """What the signer is verified by; exactly one kind."""

    public_key: Path | None
    ca: Path | None
    identity: str | None
    issuer: str | None
    trusted_root: Path | None

    @property
    def count(self) -> int:
        """How many kinds were given."""
        keyless = self.identity or self.issuer or self.trusted_root
        return sum(bool(one) for one in (self.public_key, self.ca, keyless))


def verify_bundle(
    path: Path, bundle: Path | None, roots: Roots, output: str, *, scan: bool = False
) -> int:
    """Verify, print, and return the exit code.

    Raises:
        UsageError: ST-USAG-001 when it is not exactly one root and a bundle.
    """
    from securetrain.artifacts.model.oms.model import verify_model
    from securetrain.artifacts.scan.scanner import scan_path
    from securetrain.core.errors import UsageError
    from securetrain.report import problems

    if bundle is None or roots.count != 1:
        raise UsageError(
            "ST-USAG-001",
            "a Model Signing bundle is verified with one root",
            str(path),
            "give --bundle FILE, and one of --public-key, --ca, --identity with --issuer",
        )
    trust = _trust(roots)
    with progress_bar("verifying") as progress:
        result = verify_model(path, bundle, trust, datetime.now(UTC), progress=progress)
    scanned = scan_path(path) if scan else None
    outcome, document = and_scan(problems.of_model(result), _to_dict(result), scanned)

    def text() -> None:
        _print(result)
        if scanned is not None:
            print_briefly(scanned)

    return show(output, outcome, document, text)


def _trust(roots: Roots) -> "ModelTrust":
    from securetrain.artifacts.model.oms import keys
    from securetrain.artifacts.model.oms.model import TrustedIdentity, TrustedKey, TrustedRoots
    from securetrain.core.files import read_file
    from securetrain.identity.sigstore import KeylessPolicy

    if roots.public_key is not None:
        pem = read_file(roots.public_key, KEY_LIMIT)
        return TrustedKey(key=keys.load_public(pem, str(roots.public_key)))
    if roots.ca is None:
        policy = KeylessPolicy(identity=roots.identity or "", issuer=roots.issuer or "")
        return TrustedIdentity(policy=policy, trusted_root=roots.trusted_root)
    found = keys.load_certificates(read_file(roots.ca, KEY_LIMIT), str(roots.ca))
    return TrustedRoots(roots=tuple(found))


def _to_dict(result: "ModelResult") -> dict[str, Any]:
    return {
        "kind": "model",
        "path": str(result.path),
        "bundle": str(result.bundle),
        "ok": result.ok,
        "exit": int(result.exit_code),
        "signer": result.signer,
        "num_files": result.num_files,
        "num_bytes": result.num_bytes,
        "problems": [problem.to_dict() for problem in result.problems],
    }


def _print(result: "ModelResult") -> None:
    from rich.console import Console
    from rich.text import Text

    from securetrain.core.text import printable

    console = Console(highlight=False, soft_wrap=True)
    verdict = Text("VERIFIED", "bold green") if result.ok else Text("REFUSED", "bold red")
    console.print(Text.assemble(verdict, printable(f"  model {result.path}", keep="")))
    signer = printable(result.signer, keep="") or "no named signer"
    console.print(Text(f"signed by  {signer}"))
    console.print(f"checked    {result.num_files} files, {result.num_bytes:,} bytes")
    for problem in result.problems[:MAX_SHOWN]:
        line = printable(f"{problem.file}: {problem.what}", keep="")
        console.print(Text.assemble((problem.code, "red"), f"  {line}"))
    if len(result.problems) > MAX_SHOWN:
        console.print(f"and {len(result.problems) - MAX_SHOWN} more")
    for fix in dict.fromkeys(f"{problem.code}: {problem.fix}" for problem in result.problems):
        console.print(Text(f"fix: {fix}"))
