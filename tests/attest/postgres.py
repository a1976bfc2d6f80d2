# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server of the tests' own, in a scratch directory, as a user without rights."""

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.vocabulary import free_port

USER = "fleet"
_NOBODY = "nobody"


def programs() -> Path | None:
    """The folder of the server's programs, where this machine has them."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    return next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)


class Server:
    """A server; each `database` of it is new."""

    def __init__(self, root: Path, bin_: Path) -> None:
        self.root, self.bin, self.port = root, bin_, free_port()
        self._numbers = itertools.count()
        self._run("initdb", "-D", str(self.data), "-U", USER, "-A", "trust", "-E", "UTF8")

    @property
    def data(self) -> Path:
        return self.root / "data"

    def start(self, *options: str) -> None:
        given = f"-k {self.root} -p {self.port} -c listen_addresses=127.0.0.1 {' '.join(options)}"
        log = str(self.root / "log")
        self._run(
            "pg_ctl", "-D", str(self.data), "-w", "-t", "120", "-l", log, "-o", given, "start"
        )

    def stop(self, how: str = "fast") -> None:
        """Stop it; ``immediate`` is a crash."""
        self._run("pg_ctl", "-D", str(self.data), "-w", "-t", "120", "-m", how, "stop")

    def database(self) -> str:
        """The URL of a new database."""
        name = f"fleet_{next(self._numbers)}"
        self.sql("postgres", f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, name: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{name}"

    def offer_tls(self, certificate: bytes, key: bytes) -> None:
        """Offer TLS from now on, with a certificate of the caller's."""
        for name, content in (("server.crt", certificate), ("server.key", key)):
            path = self.data / name
            path.write_bytes(content)
            path.chmod(0o600)
            if os.geteuid() == 0:
                shutil.chown(path, _NOBODY)
        self.sql("postgres", "ALTER SYSTEM SET ssl = on")
        self.sql("postgres", "SELECT pg_reload_conf()")

    def sql(self, name: str, *statements: str) -> list[tuple[object, ...]]:
        """What its administrator does by hand."""
        import psycopg

        with psycopg.connect(self.url(name), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description is not None else []

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self.bin / program), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=180,
            cwd=self.root,
            user=_NOBODY if os.geteuid() == 0 else None,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        )


@contextmanager
def server() -> Iterator[Server]:
    """A server that runs, and is gone afterwards."""
    folder = programs()
    assert folder is not None, "ask `programs` first"
    root = Path(tempfile.mkdtemp(prefix="st-postgres-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(root, _NOBODY)
        made = Server(root, folder)
        made.start()
        try:
            yield made
        finally:
            with suppress(subprocess.CalledProcessError):  # a test has stopped it
                made.stop("immediate")
    finally:
        shutil.rmtree(root)
