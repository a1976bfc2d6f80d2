# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The templates of HTML pages: everything is escaped, and a missing value is an error.

What comes from elsewhere is made printable as it is filled in.
"""

import re
from typing import TYPE_CHECKING, Any, Final

from securetrain.core import install_hint, printable
from securetrain.core.errors import UsageError
from securetrain.report.document import tone

if TYPE_CHECKING:
    import jinja2

DIGEST: Final = re.compile(r"(?:[a-z0-9-]+:)?[0-9a-f]{40,}")
NUMBER: Final = re.compile(r"-?[0-9][0-9,.]*(?: [KMGT]?i?B)?")


def rendered(name: str, **values: Any) -> str:
    """A template with these values.

    Raises:
        UsageError: ST-USAG-004 when the report extra is not installed.
    """
    return _environment().get_template(name).render(**values)


def not_installed(what: str) -> UsageError:
    """A package of the report extra is not there."""
    return UsageError("ST-USAG-004", what, "securetrain[report]", install_hint("report"))


def _environment() -> "jinja2.Environment":
    from importlib.resources import files  # noqa: PLC0415 - verifying draws no page

    try:
        import jinja2  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise not_installed("the HTML report needs jinja2") from error
    templates = files("securetrain.report") / "templates"

    def load(name: str) -> str:
        return (templates / name).read_text(encoding="utf-8")

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(load),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tone"] = tone
    environment.filters["digest"] = lambda text: bool(DIGEST.fullmatch(text))
    environment.filters["number"] = lambda text: bool(NUMBER.fullmatch(text))
    return environment


def _printable(value: Any) -> Any:
    return printable(value) if type(value) is str else value
