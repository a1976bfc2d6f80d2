# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A test that goes through a table: one item, and a subtest with a name for every row.

    @forgeries(
        "id, log, code",
        ("empty", b"", "ST-ATTS-201"),
        ("cut", LOG[:-3], "ST-ATTS-201"),
    )
    def test_logs_that_prove_nothing(log, code):
        refused(code, log=log)

Two of them over one test are the product of their tables. Every fixture of such a test is shared
by its rows: where a row needs fresh ones (``monkeypatch``, ``tmp_path``), waits or starts a
process, ``@items(...)`` is the same table, and each row an item of its own. Rows that the test
itself makes are parts of it, by ``subtests``.
"""

import functools
import inspect
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import pytest

Test: TypeAlias = Callable[..., None]
Table: TypeAlias = list[tuple[str, dict[str, Any]]]
"""Each row's name, and the parameters that it gives."""
NAME: Final = "id"
"""A table whose first column is called so names its rows."""


def each(names: str, *rows: Any) -> Callable[[Test], Test]:
    """Call the test once a row.

    Args:
        names: The parameters that a row gives, separated by commas; "id" is the row's own name.
        rows: A tuple each, or the value itself where there is one name. One mapping in their place
            is a table from the row's name to the rest of it. Without a row the test is skipped.
    """
    table = _table([name.strip() for name in names.split(",")], rows)

    def decorate(test: Test) -> Test:
        if not table:
            return _without_rows(test, names)
        inner: Table = getattr(test, "table", [("", {})])
        call: Test = getattr(test, "call", test)
        product = [
            (f"{name}-{other}" if other else name, {**values, **others})
            for name, values in table
            for other, others in inner
        ]
        if not product:
            return _without_rows(call, names)
        taken = inspect.signature(call).parameters
        if unknown := product[0][1].keys() - taken.keys():
            raise TypeError(f"{test.__name__} does not take {', '.join(sorted(unknown))}")

        @functools.wraps(call)
        def through_the_table(subtests: pytest.Subtests, **fixtures: Any) -> None:
            for name, values in product:
                with subtests.test(name):
                    call(**values, **fixtures)

        fixtures = [p for name, p in taken.items() if name not in product[0][1]]
        subtests = inspect.Parameter("subtests", inspect.Parameter.KEYWORD_ONLY)
        through_the_table.__dict__.update(
            {**test.__dict__, "table": product, "call": call},
            __signature__=inspect.Signature([*fixtures, subtests]),
        )
        return through_the_table

    return decorate


def _without_rows(test: Test, names: str) -> Test:
    """A test whose rows are files that this machine lacks: it is skipped, and says so."""

    def skipped() -> None:
        pytest.skip(f"no row for {names}")

    skipped.__dict__.update(test.__dict__, call=test, table=[])
    skipped.__name__ = test.__name__
    return skipped


def forgeries(names: str, *rows: Any) -> Callable[[Test], Test]:
    """Call the test once a row, each of which is a forgery."""

    def decorate(test: Test) -> Test:
        marked: Test = pytest.mark.forgery(each(names, *rows)(test))
        return marked

    return decorate


def items(names: str, *rows: Any) -> pytest.MarkDecorator:
    """Make each row an item of its own, with fresh fixtures; the table is that of `each`."""
    columns = [name.strip() for name in names.split(",")]
    table = _table(columns, rows)
    named = columns[0] == NAME or (len(rows) == 1 and isinstance(rows[0], Mapping))
    return pytest.mark.parametrize(
        [name for name in columns if name != NAME],
        [pytest.param(*values.values(), id=name if named else None) for name, values in table],
    )


def num_cases(test: Callable[..., object]) -> int:
    """How many rows a test goes through: one where it has no table."""
    return len(getattr(test, "table", [test]))


def _table(columns: list[str], rows: tuple[Any, ...]) -> Table:
    named = columns[0] == NAME
    columns = columns[named:]
    if len(rows) == 1 and isinstance(rows[0], Mapping):
        return [(str(name), _values(columns, row)) for name, row in rows[0].items()]
    if named:
        return [(row[0], dict(zip(columns, row[1:], strict=True))) for row in rows]
    return [(reprlib.repr(row), _values(columns, row)) for row in rows]


def _values(columns: list[str], row: Any) -> dict[str, Any]:
    return dict(zip(columns, (row,) if len(columns) == 1 else row, strict=True))
