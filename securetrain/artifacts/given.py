# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The arguments of the public functions: checked by their annotations, and opened, in one place.

Rules, in order:

1. `checked` compares each argument with its annotation before anything else happens. What does not
   fit is refused by the argument's name, with what it may be; its value is not shown: it may be a
   secret. A time without a zone fits no annotation, nor does a name that is empty or has lines;
2. a key, a trust root and a policy are objects, or the names of what is read when it is needed. An
   error of reading says which argument it was;
3. what Python itself refuses of a call (an argument too many, or a missing one) is its TypeError.
"""

import collections.abc
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, Union
from typing import get_args as args_of
from typing import get_origin as origin_of
from typing import get_type_hints as hints_of

from securetrain.core.errors import SecureTrainError, UsageError
from securetrain.identity import load_trust
from securetrain.identity.keys import Signer
from securetrain.identity.trust import TrustRoot
from securetrain.policy.load import LoadedPolicy, digest_of, load_policy
from securetrain.policy.schema import Policy

F = TypeVar("F", bound=Callable[..., Any])

KEY_FORMS: Final = "a signer, or its name as --key takes it: a file, a pkcs11: URI, awskms:, ..."
_TRUST: Final = "a TrustRoot, or the path of a trust root's file or folder"
_POLICY: Final = "a Policy, or the name of a shipped policy or the path of one"
Key: TypeAlias = Annotated[Signer | Path | str, KEY_FORMS]
Trust: TypeAlias = Annotated[TrustRoot | Path | str, _TRUST]
PolicyName: TypeAlias = Annotated[LoadedPolicy | Policy | Path | str, _POLICY]
Folder: TypeAlias = Annotated[Path | str, "the path of a file or directory"]
Moment: TypeAlias = Annotated[datetime, "a datetime with a time zone"]


def checked(function: F) -> F:
    """Have a function refuse arguments that do not fit their annotations (rule 1)."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        arguments = signature.bind(*given, **named).arguments
        _check(function, function.__qualname__, arguments)
        return function(*given, **named)

    return call  # type: ignore[return-value]  # the same signature


def check_fields(made: Any) -> None:
    """Refuse an object whose fields do not fit their annotations, from its ``__post_init__``."""
    kind: Callable[..., Any] = type(made)
    fields = {name: getattr(made, name) for name in _hints(kind)}
    _check(kind, kind.__qualname__, fields)


def open_key(given: Key, name: str = "key") -> Signer:
    """The signer that a caller gives, or names as ``--key`` does.

    Raises:
        SecureTrainError: as `identity.open_signer`; it cannot ask for a passphrase.
    """
    if not isinstance(given, Path | str):
        return given
    from securetrain.identity import open_signer  # noqa: PLC0415 - who verifies needs no signer

    with naming(name, KEY_FORMS):
        return open_signer(str(given), ask_nobody)


def open_trust(given: Trust, now: datetime, name: str = "trust") -> TrustRoot:
    """The trust root that a caller gives, or names by its file or folder.

    Raises:
        SecureTrainError: as `identity.load_trust`.
    """
    if isinstance(given, TrustRoot):
        return given
    with naming(name, _TRUST):
        return load_trust(Path(given), now)


def open_policy(given: PolicyName | None, name: str = "policy") -> LoadedPolicy | None:
    """The policy that a caller gives, or names; None asks for nothing.

    Raises:
        SecureTrainError: as `policy.load_policy`.
    """
    if isinstance(given, Policy):
        return LoadedPolicy(policy=given, digest=digest_of(given))
    if not isinstance(given, Path | str):
        return given
    with naming(name, _POLICY):
        return load_policy(str(given))


def demands(given: PolicyName | None) -> Policy | None:
    """The same without where it came from."""
    found = open_policy(given)
    return None if found is None else found.policy


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPolicy(LoadedPolicy):
    """A policy with who counts the steps before a checkpoint that is loaded (`chain.counted`)."""

    counts: Callable[[Any, Any], Sequence[Any]]
    """Problems of a verified statement in its storage."""


def counts_of(given: PolicyName | None) -> Callable[[Any, Any], Sequence[Any]] | None:
    """The function that counts steps for a policy that a caller gives; None without one."""
    return given.counts if isinstance(given, JudgedPolicy) else None


def moment(given: datetime | None) -> datetime:
    """The time that a caller gives; None for that of this machine's clock."""
    return datetime.now(UTC) if given is None else given


def ask_nobody(what: str) -> bytes:
    """Refuse to give a passphrase: who calls a function gives an open key.

    Raises:
        UsageError: ST-USAG-001.
    """
    raise UsageError(
        "ST-USAG-001",
        f"the {what} is needed, and nobody can be asked for it here",
        fix="open the key yourself (identity.keys.PrivateKey.load) and give what it returns",
    )


@contextmanager
def naming(name: str, may_be: str) -> Iterator[None]:
    """Say in an error which argument it is about, and what it may be (rule 2)."""
    try:
        yield
    except (SecureTrainError, OSError) as error:
        if isinstance(error, OSError):
            error = UsageError("ST-USAG-002", f"{error.strerror}")
        what = f"{name} ({may_be}): {error.what}"
        raise type(error)(error.code, what, error.where, error.fix) from error


@cache
def _hints(owner: Callable[..., Any]) -> dict[str, Any]:
    return hints_of(owner, include_extras=True)


def _check(owner: Callable[..., Any], where: str, arguments: Mapping[str, Any]) -> None:
    for name, kind in _hints(owner).items():
        if name not in arguments or _fits(arguments[name], kind):
            continue
        given = arguments[name]
        what = f"{name} is of type {type(given).__name__}"
        if isinstance(given, datetime) and given.utcoffset() is None:
            what = f"{name} is a time without a zone"
        elif isinstance(given, Path | str) and _unnamed(given):
            what = f"{name} is empty, or has more than one line"
        raise UsageError("ST-USAG-001", what, f"{where}({name}=)", f"give {_said(kind)}")


def _fits(given: Any, kind: Any) -> bool:
    """Tell whether a value is what an annotation says."""
    origin, args = origin_of(kind), args_of(kind)
    if origin is Annotated:
        named = isinstance(args[1], str) and isinstance(given, Path | str)
        return _fits(given, args[0]) and not (named and _unnamed(given))
    if origin in {Union, types.UnionType}:
        return any(_fits(given, one) for one in args)
    if origin is Literal:
        return given in args
    if origin is tuple:
        return isinstance(given, tuple) and all(_fits(one, args[0]) for one in given)
    if origin is not None and issubclass(origin, collections.abc.Collection):
        plain = isinstance(given, origin) and not isinstance(given, str | bytes)
        return plain and all(_fits(one, args[0]) for one in given)
    if kind is Any:
        return True
    if kind in {int, float}:
        return isinstance(given, kind) and not isinstance(given, bool)
    if kind is datetime:
        return isinstance(given, datetime) and given.utcoffset() is not None
    if isinstance(kind, type) and issubclass(kind, Enum):
        return isinstance(given, kind) or given in [one.value for one in kind]
    return isinstance(given, origin or kind)


def _unnamed(given: Path | str) -> bool:
    """Tell whether a text names nothing: it is empty, or no single line (the key itself, say)."""
    text = str(given)
    return not text or not {"\0", "\n", "\r"}.isdisjoint(text)


def _said(kind: Any) -> str:
    """An annotation in words: whatever it allows."""
    args = args_of(kind)
    if origin_of(kind) is Annotated:
        return args[1] if isinstance(args[1], str) else _said(args[0])
    if origin_of(kind) in {Union, types.UnionType}:
        return " or ".join(map(_said, args))
    return "None" if kind is types.NoneType else inspect.formatannotation(kind)
