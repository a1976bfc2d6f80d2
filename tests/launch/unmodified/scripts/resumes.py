# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A script that saves and loads in the usual ways, and somebody who alters files in between.

Prints one JSON line: what each load gave, or the code with which it was refused. It runs under
``securetrain run``, and alone as the control. Argument: a folder that is there.
"""

# mypy: ignore-errors

import io
import json
import os
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

try:
    from safetensors.torch import load_file, save_file
except ImportError:  # it is not among what everybody installs
    load_file = save_file = None

SIGNED = ".securetrain.json"
SIZE = 64


def state(value=1.0, step=7):
    """A checkpoint as scripts have them."""
    return {"model": {"weight": torch.full((SIZE,), value)}, "step": step}


def pt(path, **options):
    """Load one file."""
    return float(torch.load(path, **options)["model"]["weight"].sum())


def shards(path):
    """Load a directory; all ranks call it."""
    into = state(0.0, 0)
    dcp.load(into, checkpoint_id=path)
    return float(into["model"]["weight"].sum())


def tensors(path):
    """Load a safetensors file."""
    return float(load_file(path)["weight"].sum())


def handle(path):
    """Load an open file."""
    with path.open("rb") as file:
        return pt(file)


def altered(path, old=1.0, new=2.0):
    """Change the bytes of the numbers in a file, and nothing else."""
    data = path.read_bytes()
    one, other = (torch.full((1,), x).numpy().tobytes() for x in (old, new))
    assert one * 8 in data
    path.write_bytes(data.replace(one * 8, other * 8))


def exchanged(path):
    """Put a whole other checkpoint in the place of one."""
    other = io.BytesIO()
    torch.save(state(9.0), other)
    path.write_bytes(other.getvalue())


def honest(folder, first):
    """Save in every way; give what loads each."""
    loads = {}
    if first:
        torch.save(state(), folder / "path.pt")
        with (folder / "handle.pt").open("wb") as file:
            torch.save(state(), file)
        torch.save(state(), folder / "renamed.pt.tmp")
        (folder / "renamed.pt.tmp").replace(folder / "renamed.pt")
        for number in range(3):
            torch.save(state(step=number), folder / "over.pt")
        torch.save(state(), folder / "gone.pt")
        (folder / "gone.pt").unlink()
        torch.save(state(), folder / "old.pt", _use_new_zipfile_serialization=False)
        torch.save(state(), os.fspath(folder / "text.pt"))
        if save_file:
            save_file({"weight": torch.ones(SIZE)}, folder / "path.safetensors")
    dcp.save(state(), checkpoint_id=folder / "step-1")
    dcp.save(state(), storage_writer=dcp.FileSystemWriter(folder / "step-2"))
    if dist.is_initialized():
        dcp.async_save(state(), checkpoint_id=folder / "step-3").result()
        loads["async"] = (shards, folder / "step-3")
    for name in ("path", "renamed", "over", "old", "text"):
        loads[name] = (pt, folder / f"{name}.pt")
    loads["mmap"] = (lambda path: pt(path, mmap=True), folder / "path.pt")
    loads["handle"] = (handle, folder / "handle.pt")
    loads["dcp"] = (shards, folder / "step-1")
    loads["writer"] = (shards, folder / "step-2")
    if save_file:
        loads["safetensors"] = (tensors, folder / "path.safetensors")
    return loads


def attacks(folder, first):
    """Alter what was saved; give what loads each."""
    names = ("altered", "exchanged", "moved", "unsigned", "renamed-file", "began")
    if first:
        for name in (*names, "path"):
            torch.save(state(), folder / f"{name}.pt")
        altered(folder / "altered.pt")
        exchanged(folder / "exchanged.pt")
        # The signature of another file, whose bytes are these.
        for end in ("", SIGNED):
            if (folder / f"path.pt{end}").exists():
                shutil.copyfile(folder / f"path.pt{end}", folder / f"moved.pt{end}")
        (folder / f"unsigned.pt{SIGNED}").unlink(missing_ok=True)
        # By others: what this script renames itself is signed again.
        os.system(f"mv {folder}/renamed-file.pt {folder}/other.pt")
        os.system(f"mv {folder}/renamed-file.pt{SIGNED} {folder}/other.pt{SIGNED} 2>/dev/null")
        (folder / f"began.pt{SIGNED}").write_bytes(b"")
        if save_file:
            save_file({"weight": torch.ones(SIZE)}, folder / "altered.safetensors")
            altered(folder / "altered.safetensors")
    dcp.save(state(), checkpoint_id=folder / "step-8")
    dcp.save(state(), checkpoint_id=folder / "step-9")
    if first:
        altered(next((folder / "step-8").glob("*.distcp")))
        os.system(f"mv {folder}/step-9 {folder}/step-99")
    loads = {name: (pt, folder / f"{name}.pt") for name in names if name != "renamed-file"}
    loads["renamed-file"] = (pt, folder / "other.pt")
    loads["altered-shard"] = (shards, folder / "step-8")
    loads["renamed-step"] = (shards, folder / "step-99")
    if save_file:
        loads["altered-safetensors"] = (tensors, folder / "altered.safetensors")
    return loads


def tried(load, path):
    """Load; the number that it gives, or the code of the refusal."""
    try:
        return load(path)
    except BaseException as error:  # noqa: BLE001 - torch raises such
        found = error
        while found is not None and not hasattr(found, "code"):
            causes = list(getattr(found, "failures", {}).values())
            found = causes[0][0] if causes else (found.__cause__ or found.__context__)
        return getattr(found, "code", f"{type(error).__name__}: {error}"[:300])


def main():
    folder = Path(sys.argv[1])
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    first = not dist.is_initialized() or dist.get_rank() == 0
    said = {}
    for make in (honest, attacks):
        place = folder / make.__name__
        if first:
            place.mkdir()
        if dist.is_initialized():
            dist.barrier()
        loads = make(place, first)
        if dist.is_initialized():
            dist.barrier()
        said[make.__name__] = {name: tried(load, path) for name, (load, path) in loads.items()}
    if first:
        sys.stdout.write(f"said {json.dumps(said, sort_keys=True)}\n")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
