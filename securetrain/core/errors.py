# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The error tree.

::

    SecureTrainError(code, what, where, fix)
      UsageError          ST-USAG  bad input, files, ports, missing packages
      PolicyError         ST-PLCY  the policy itself
      IdentityError       ST-IDEN  keys, certificates, signatures, trust root
      AttestationError    ST-ATTS  evidence
      AdmissionError      ST-ADMN  rendezvous, admission, membership
      NetworkError        ST-NETW  job network, worker environment
      RuntimeRefusal      ST-RUNT  launcher and worker shim
      GuardError          ST-GRAD  gradients
      IntegrityError      ST-CKPT, ST-DATA, ST-OMSB, ST-SCAN, ST-LEDG, ST-CHAN  what is stored
      AuditError          ST-AUDT, ST-THRT, ST-DRIL  the audit's own inputs, threat models, drills

Every error says what was expected and found (``what``), in which file and field (``where``) and
what to do about it (``fix``). Everything else about it stands in the row of its code
(`core.codes`). All are picklable: torch sends errors between ranks.
"""

import os
from typing import ClassVar, Final

from securetrain.core.codes import CODES, Code, ExitCode

HIDDEN_VARIABLE: Final = "SECURETRAIN_HIDDEN"
"""Names to a worker the folders, with colons, of which its sandbox shows it nothing unnamed."""


class SecureTrainError(Exception):
    """A refusal with a stable code. Raise one of the subclasses."""

    families: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, code: str, what: str = "", where: str = "", fix: str = "") -> None:
        """Give what varies: `what` is by default the code's title, `fix` its standing fix."""
        super().__init__(code, what, where, fix)
        assert code in CODES, f"{code} is not in the table, core/codes"
        assert not self.families or CODES[code].family in self.families, (
            f"{code} does not belong to {type(self).__name__}"
        )
        self.code = code
        self.what = what or CODES[code].title
        self.where = where
        self.fix = fix or CODES[code].fix

    @property
    def definition(self) -> Code:
        """The entry of this error's code in the table."""
        return CODES[self.code]

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command that ends with this error."""
        return self.definition.exit

    def to_dict(self) -> dict[str, str | int]:
        """The error as data, for --json, SARIF and the ledger."""
        return {
            "code": self.code,
            "title": self.definition.title,
            "what": self.what,
            "where": self.where,
            "fix": self.fix,
            "exit": int(self.exit_code),
        }

    def __str__(self) -> str:
        text = f"{self.code}: {self.what}"
        if self.where:
            text += f"\n  where: {self.where}"
        return f"{text}\n  fix:   {self.fix}"


class UsageError(SecureTrainError):
    """Bad input from a person, or something that the machine could not give."""

    families = frozenset({"USAG"})

    def __init__(
        self, code: str, what: str = "", where: str = "", fix: str = "", *, path: object = None
    ) -> None:
        """Give what varies, and the path that is wanted where that is not `where`.

        A worker does not know what lies in a folder that its sandbox hides: it is told that the
        path is not shown, never that nothing is there.
        """
        wanted = str(where if path is None else path)
        match code:
            case "ST-USAG-002" | "ST-USAG-007" if _is_hidden(wanted):
                what = f"not shown here: {wanted} lies in a folder that workers do not see"
                fix = f"name it on the command line: --input {wanted}"
        super().__init__(code, what, where, fix)


class PolicyError(SecureTrainError):
    """The policy file is malformed or contradicts itself."""

    families = frozenset({"PLCY"})


class IdentityError(SecureTrainError):
    """A key, certificate, signature or trust root was refused."""

    families = frozenset({"IDEN"})


class AttestationError(SecureTrainError):
    """A node's evidence was refused."""

    families = frozenset({"ATTS"})


class AdmissionError(SecureTrainError):
    """A peer or a message of the rendezvous was refused."""

    families = frozenset({"ADMN"})


class NetworkError(SecureTrainError):
    """The job network cannot be what the policy requires."""

    families = frozenset({"NETW"})


class RuntimeRefusal(SecureTrainError):  # noqa: N818 - a refusal is what it is
    """The launcher or a worker's shim refused to go on."""

    families = frozenset({"RUNT"})


class GuardError(SecureTrainError):
    """A gradient or a reduction was refused."""

    families = frozenset({"GRAD"})


class IntegrityError(SecureTrainError):
    """A checkpoint, dataset or ledger is not what was signed."""

    families = frozenset({"CHAN", "CKPT", "CTLG", "DATA", "LEDG", "OMSB", "PACK", "SCAN"})


class AuditError(SecureTrainError):
    """An input of the audit, a threat model or a drill is invalid."""

    families = frozenset({"AUDT", "THRT", "DRIL"})


def _is_hidden(path: str) -> bool:
    roots = [root for root in os.environ.get(HIDDEN_VARIABLE, "").split(":") if root]
    if not roots or "\0" in path:
        return False
    place = os.path.realpath(path)
    return any(place.startswith(f"{root}/") for root in roots) and not os.path.lexists(place)


def reason(error: Exception) -> str:
    """Describe an error in one line, for the text of another error."""
    return error.what if isinstance(error, SecureTrainError) else str(error)


def os_error(error: OSError, where: str) -> UsageError:
    """Turn an `OSError` into the one error that a person should see."""
    import errno  # noqa: PLC0415 - only on the way out

    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return UsageError(
            "ST-USAG-006",
            where=where,
        )
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            "ST-USAG-003",
            where=where,
        )
    fix = ""
    if error.errno in {errno.EACCES, errno.EPERM}:
        fix = "use an account that may (root, for what belongs to the machine), or change who may"
    return UsageError("ST-USAG-002", f"{error.strerror or error}", where, fix)
