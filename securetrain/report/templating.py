# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The templates of HTML pages: everything is escaped, and a missing value is an error."""

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from securetrain.core import install_hint
from securetrain.core.errors import UsageError

if TYPE_CHECKING:
    import jinja2


def rendered(name: str, **values: Any) -> str:
    """A template with these values.

    Raises:
        UsageError: ST-USAG-004 when the report extra is not installed.
    """
    return _environment().get_template(name).render(**values)


def _environment() -> "jinja2.Environment":
    try:
        import jinja2  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise UsageError(
            "ST-USAG-004",
            "the HTML report needs jinja2",
            "securetrain[report]",
            install_hint("report"),
        ) from error
    templates = files("securetrain.report") / "templates"

    def load(name: str) -> str:
        return (templates / name).read_text(encoding="utf-8")

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(load),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = short
    environment.filters["size"] = size
    environment.filters["number"] = number
    return environment


def short(digest: str) -> str:
    """The beginning of a digest."""
    return digest[:12] if len(digest) > 16 else digest


def size(num_bytes: int | None) -> str:
    """Bytes for people."""
    if num_bytes is None:
        return ""
    value, units = float(num_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def number(value: Any) -> str:
    """A number in the page, or the words for a missing one."""
    return "not recorded" if value is None else f"{value:,}"
