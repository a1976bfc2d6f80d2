# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Libraries that look like NCCL, compiled by the tests: with TLS, without it, and in between."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

SOURCE: Final = r"""
#include <stddef.h>
#include <string.h>
typedef struct { size_t size; unsigned magic, version; int mode; const char *psk; } config;
static char key[256];
static const char *const words = WORDS;
int ncclGetVersion(int *version) { *version = 23203; return 0; }
int ncclGetUniqueId(void *id) { return id == 0; }
const char *fake_key(void) { return key; }
const char *fake_words(void) { return words; }
#ifdef RESULT
int ncclSetEncryption(const config *c) {
  if (c->size != sizeof(*c) || c->magic != 0xcafebeef || c->version != 23203) return 4;
  if (c->mode != 1 || strlen(c->psk) < 32 || strlen(c->psk) >= sizeof(key)) return 4;
  strcpy(key, c->psk);
  return RESULT;
}
#endif
"""

TLS: Final = ("libssl.so.3", "0")
"""As a build with TLS_BACKEND=OPENSSL3: it names the library that it loads."""

WITHOUT: Final = ("NCCL was built without TLS support but a pre-shared key was configured", "0")
"""As the wheel on PyPI: takes the key, says that all is well, and has no TLS."""

OLD: Final = ("NCCL 2.29.7", "")
"""Before 2.32: no such function."""

REFUSES: Final = ("libssl.so.3", "5")
"""Has TLS and does not take the key."""

Compile: TypeAlias = Callable[..., Path]


def compile_nccl(folder: Path, what: tuple[str, str], name: str = "libnccl.so.2") -> Path:
    """Compile one; its words are in its constants, as NCCL's are."""
    words, result = what
    source, library = folder / f"{name}.c", folder / name
    source.write_text(SOURCE)
    define = [f'-DWORDS="{words}"', *([f"-DRESULT={result}"] if result else [])]
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the tests of NCCL's TLS need a C compiler"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", *define, "-o", str(library), str(source)], check=True
    )
    return library
