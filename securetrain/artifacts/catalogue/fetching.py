# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Hand python-tuf the files of a catalogue. Nothing is fetched from where its URLs point."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tuf.api.exceptions import DownloadHTTPError
from tuf.ngclient import FetcherInterface

from securetrain.artifacts.catalogue.oci import Files

BASE: Final = "https://catalogue.invalid/"
_NOT_FOUND: Final = 404


@dataclass(slots=True)
class FilesFetcher(FetcherInterface):
    """Names below `BASE` are files of the catalogue."""

    files: Files

    def _fetch(self, url: str) -> Iterator[bytes]:
        data = self.files.read(url.removeprefix(BASE))
        if data is None:
            raise DownloadHTTPError(f"there is no {url.removeprefix(BASE)}", _NOT_FOUND)
        return iter([data])
