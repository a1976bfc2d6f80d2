# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A connection to PostgreSQL, with rules of its own on what is asked for and for how long.

Rules:

1. the address is a URL without a password: that comes from a pgpass file, a certificate or
   PGPASSWORD, as libpq reads them, so that it stands on no command line and in no ledger;
2. over a network, TLS with the server's name verified (``sslmode=verify-full``); without it only on
   this machine. Settings that would lead elsewhere (``PGHOSTADDR``, ``PGSERVICE``) are refused;
3. nothing waits for ever: connecting, statements, locks and idle transactions have limits, the
   last so that a coordinator that was stopped holds up no other;
4. a connection that is lost is made anew once; a change that was under way is refused, since
   nobody knows what became of it, and is made again by whoever asked for it;
5. a server that is a standby, or would forget after a power cut (``fsync=off``), is not used.

Source: PostgreSQL documentation, 34.1 (connection strings), 20.11 (client defaults).
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from securetrain.core import install_hint
from securetrain.core.errors import AttestationError, UsageError

if TYPE_CHECKING:
    import psycopg

SCHEMES: Final = frozenset({"postgresql", "postgres"})
URL_LIMIT: Final = 2048
SCHEMA: Final = "securetrain_fleet"
DURABLE: Final = "SET LOCAL synchronous_commit = on"
"""Begins a transaction that is on disk when it ends, also of standbys that the server waits for."""
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_OPTIONS: Final = frozenset(
    {
        "host",
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "sslcrl",
        "passfile",
        "target_session_attrs",
    }
)
_SECONDS: Final = 5
_SETTINGS: Final = {
    "search_path": f"{SCHEMA},pg_catalog,pg_temp",
    "statement_timeout": f"{_SECONDS}s",
    "lock_timeout": f"{_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{_SECONDS}s",
    "synchronous_commit": "off",  # of what need not outlive a power cut; see `DURABLE`
    "default_transaction_read_only": "off",
    "standard_conforming_strings": "on",
}


def settings_of(url: str) -> dict[str, str]:
    """The connection settings of a URL.

    Raises:
        UsageError: ST-USAG-001, naming what is wrong with it, and never the password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 5432
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
    except ValueError as error:
        raise _no_url("it cannot be read, or its port is no number") from error
    host = options.pop("host", "") or unquote(parts.hostname or "")
    name = unquote(parts.path.removeprefix("/"))
    local = host in _LOCAL or host.startswith("/")
    unknown = sorted(options.keys() - _OPTIONS)
    mode = options.get("sslmode", "")
    # The first that holds is told; none of the texts repeats what may be a password.
    objections = {
        "it is too long, or holds a character that cannot be printed": (
            len(url) > URL_LIMIT or not url.isprintable()
        ),
        "it does not begin with postgresql://": parts.scheme not in SCHEMES,
        "it holds a password": (
            parts.password is not None or any("password" in word for word in unknown)
        ),
        f"a setting of it is none of {', '.join(sorted(_OPTIONS))}": bool(unknown),
        "it names no server or no database": not host or not name or "/" in name,
        "it names more than one server, or a part of a page": bool(parts.fragment) or "," in host,
        "its sslmode does not verify the server": not local and mode not in {"", "verify-full"},
    }
    for objection, holds in objections.items():
        if holds:
            raise _no_url(objection)
    return {
        "host": host,
        "port": str(port),
        "dbname": name,
        **({"user": unquote(parts.username)} if parts.username else {}),
        **options,
        "sslmode": mode or ("prefer" if local else "verify-full"),
    }


def _no_url(what: str) -> UsageError:
    return UsageError(
        "ST-USAG-001",
        what,
        "the database's URL",
        "write postgresql://USER@HOST/DATABASE, with ?sslrootcert=FILE over a network; the password"
        " goes into a pgpass file (?passfile=FILE)",
    )


def place_of(settings: Mapping[str, str]) -> str:
    """The database, as people and ledgers name it: no user and no file."""
    host = settings["host"]
    host = "[local]" if host.startswith("/") else f"[{host}]" if ":" in host else host
    return f"postgresql://{host}:{settings['port']}/{settings['dbname']}"


_CONNECTION: Final[dict[str, str | int]] = {
    "connect_timeout": _SECONDS,
    "application_name": "securetrain",
    "client_encoding": "UTF8",
    "keepalives_idle": _SECONDS,
    "keepalives_interval": 1,
    "keepalives_count": _SECONDS,
    "tcp_user_timeout": 2000 * _SECONDS,
    "options": " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items()),
}


class Database:
    """One connection, for several threads in turn."""

    def __init__(self, url: str) -> None:
        """Connect.

        Raises:
            UsageError: ST-USAG-001 for the URL, ST-USAG-004 without psycopg.
            AttestationError: ST-ATTS-015.
        """
        self._settings = settings_of(url)
        self.place = place_of(self._settings)
        self._lock = threading.RLock()
        self._connection: psycopg.Connection[Any] | None = None
        self._connected()

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock, suppress(Exception):
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    @contextmanager
    def transaction(self, *first: str) -> Iterator[None]:
        """Do all of it or nothing.

        Args:
            first: the statements that begin it; they are tried again on a new connection.

        Raises:
            AttestationError: ST-ATTS-015.
        """
        with self._lock:
            for again in (True, False):
                try:
                    for statement in first:
                        self._once(statement)
                    break
                except AttestationError:
                    lost = self._is_lost()
                    self._undo()
                    if not (again and lost):
                        raise
            try:
                yield
                self._once("COMMIT")
            except BaseException:
                self._undo()
                raise

    def run(self, statement: str, values: tuple[str | int | bytes, ...] = ()) -> list[Any]:
        """Run one statement; outside of a transaction once more where the connection was lost.

        Raises:
            AttestationError: ST-ATTS-015; ST-ATTS-017 when a table is missing.
        """
        with self._lock:
            inside = self._connection is not None and self._connection.info.transaction_status > 0
            try:
                return self._once(statement, values)
            except AttestationError:
                if inside or not self._is_lost():
                    raise
                return self._once(statement, values)

    def _once(self, statement: str, values: tuple[str | int | bytes, ...] = ()) -> list[Any]:
        import psycopg  # noqa: PLC0415 - an extra

        try:
            cursor = self._connected().execute(statement.replace("?", "%s"), values)
            return cursor.fetchall() if cursor.description is not None else []
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            raise AttestationError("ST-ATTS-017", "a table of it is missing", self.place) from error
        except (psycopg.Error, ValueError) as error:
            raise self._bad(error) from error

    def _is_lost(self) -> bool:
        return self._connection is None or self._connection.closed or self._connection.broken

    def _undo(self) -> None:
        """End a transaction that failed; a connection on which that fails too is let go of."""
        if self._connection is None:
            return
        try:
            self._connection.execute("ROLLBACK")
        except Exception:  # noqa: BLE001 - the reason of the failure is what is told
            self.close()

    def _connected(self) -> "psycopg.Connection[Any]":
        try:
            import psycopg  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise UsageError(
                "ST-USAG-004",
                "the fleet's state is in PostgreSQL, and psycopg is not installed",
                self.place,
                install_hint("postgres"),
            ) from error
        if self._connection is not None and not self._is_lost():
            return self._connection
        self.close()
        for option in psycopg.pq.Conninfo.get_defaults():
            if option.keyword in {b"hostaddr", b"service"} and option.val:
                raise UsageError(
                    "ST-USAG-001",
                    "it leads to another server than the URL names",
                    (option.envvar or option.keyword).decode(),
                    "unset it",
                )
        try:
            made = psycopg.connect(
                psycopg.conninfo.make_conninfo("", **self._settings, **_CONNECTION),
                autocommit=True,
                prepare_threshold=None,
            )
        except (psycopg.Error, ValueError) as error:
            raise self._bad(error) from error
        try:
            self._require_lasting(made)
        except BaseException:
            made.close()
            raise
        self._connection = made
        return made

    def _require_lasting(self, made: "psycopg.Connection[Any]") -> None:
        import psycopg  # noqa: PLC0415 - an extra

        try:
            standby, fsync, pages = made.execute(
                "SELECT pg_is_in_recovery(), current_setting('fsync'),"
                " current_setting('full_page_writes')"
            ).fetchone() or (True, "", "")
        except psycopg.Error as error:
            raise self._bad(error) from error
        if standby:
            raise AttestationError("ST-ATTS-015", "the server is a standby", self.place)
        if (fsync, pages) != ("on", "on"):
            raise AttestationError(
                "ST-ATTS-015",
                "the server would lose bars in a power cut: fsync or full_page_writes is off",
                self.place,
                "turn both on in postgresql.conf",
            )

    def _bad(self, error: Exception) -> AttestationError:
        text = str(error).strip() or type(error).__name__
        return AttestationError("ST-ATTS-015", text.splitlines()[0][:300], self.place)
