# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The programs whose words are followed: which options take a value, and what they run.

Options: srun(1), sbatch(1), mpirun(1) of Open MPI and Hydra, ssh(1), sudo(8), env(1), xargs(1) and
the ``--help`` of the others.
"""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from securetrain.audit.shell.values import Arg

SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
PYTHONS: Final = frozenset({"python", "python2", "python3", "ipython", "pypy3"})


@dataclass(frozen=True, slots=True)
class Program:
    """A program that runs another one."""

    family: str
    """The first of those that take the same options."""
    runs: str
    """``words`` that stand behind its own, or the ``text`` that they make, or that of an option."""
    operands: int
    """Words of its own that are no options."""
    takes: frozenset[str]
    """Options whose value is the next word."""
    verbs: frozenset[str]
    """Of which the first word must be one."""
    far: bool
    """Whether what it runs sees other variables than its own."""


_SLURM: Final = (
    "-A -b -B -c -C -d -D -e -E -F -g -G -i -J -L -m -M -n -N -o -p -q -r -S -t -T -u -U -w -W -x"
    " --account --begin --bcast --chdir --cluster --clusters --comment --constraint --container"
    " --container-env --container-image --container-mounts --container-name --container-workdir"
    " --core-spec --cpu-bind --cpu-freq --cpus-per-gpu --cpus-per-task --deadline --dependency"
    " --distribution --error --exclude --export --export-file --gpu-bind --gpu-freq --gpus"
    " --gpus-per-node --gpus-per-socket --gpus-per-task --gres --het-group --hint --input"
    " --job-name --jobid --label-file --licenses --mail-type --mail-user --mem --mem-bind"
    " --mem-per-cpu --mem-per-gpu --mpi --nodefile --nodelist --nodes --ntasks --ntasks-per-core"
    " --ntasks-per-gpu --ntasks-per-node --ntasks-per-socket --open-mode --output --partition"
    " --power --priority --profile --prolog --qos --relative --reservation --signal"
    " --sockets-per-node --task-epilog --task-prolog --threads --threads-per-core --time"
    " --time-min --tmp --wckey --wrap"
)
_MPI: Final = (
    "-np -n -c -N -x -H -f -host --host -hosts -hostfile --hostfile -machinefile --machinefile"
    " -npernode -ppn --ppn -bind-to --bind-to -map-by --map-by -rank-by --rank-by -wdir --wdir"
    " -prefix --prefix -genv* -env* -genvlist -envlist -mca* --mca* -gmca* --gmca* --prtemca*"
    " -output-filename --output-filename -timeout --timeout -launcher -iface -app --app -path"
)
_DOCKER: Final = (
    "-a -c -e -h -l -m -p -u -v -w --add-host --annotation --attach --authfile --blkio-weight"
    " --cap-add --cap-drop --cgroup-parent --cgroupns --cidfile --cpu-period --cpu-quota"
    " --cpu-shares --cpus --cpuset-cpus --cpuset-mems --device --device-cgroup-rule --dns"
    " --dns-search --domainname --entrypoint --env --env-file --expose --gpus --group-add"
    " --health-cmd --hostname --ip --ipc --isolation --label --label-file --link --log-driver"
    " --log-opt --mac-address --memory --memory-swap --mount --name --net --network"
    " --network-alias --oom-score-adj --pid --pids-limit --platform --pod --publish --pull"
    " --restart --runtime --secret --security-opt --shm-size --stop-signal --stop-timeout"
    " --storage-opt --sysctl --tmpfs --ulimit --user --userns --uts --volume --volumes-from"
    " --workdir"
)
_APPTAINER: Final = (
    "-B -H -S -W -o -s --add-caps --app --apply-cgroups --bind --cwd --dns --drop-caps --env"
    " --env-file --fusemount --home --hostname --mount --network --network-args --overlay --pwd"
    " --scratch --security --shell --workdir"
)
_NSYS: Final = (
    "-t -o -s -w -c -y -d -f --trace --output --sample --capture-range --duration --delay --stats"
    " --force-overwrite"
)
_TABLE: Final = {
    "srun salloc sbatch": ("words", 0, _SLURM, "", False),
    "mpirun mpiexec orterun prun prterun": ("words", 0, _MPI, "", False),
    "env": ("words", 0, "-u -C -S --unset --chdir", "", False),
    "nohup command builtin time setsid unbuffer": ("words", 0, "", "", False),
    "dumb-init stdbuf catchsegv proxychains4 ld.so": ("words", 0, "-o -i -e", "", False),
    "exec": ("words", 0, "-a", "", False),
    "tini": ("words", 0, "-p -e", "", False),
    "nice ionice": ("words", 0, "-n -c -p --adjustment", "", False),
    "timeout": ("words", 1, "-k -s --kill-after --signal", "", False),
    "numactl": ("words", 0, "-N -m -C -p -i", "", False),
    "taskset chroot gosu su-exec flock": ("words", 1, "-w -E --userspec", "", False),
    "xargs": ("words", 0, "-n -P -I -d -L -a -s -E --max-args --max-procs --replace", "", False),
    "sudo": ("words", 0, "-u -g -h -p -C -r -t -U --user --group --chdir", "", False),
    "sshpass": ("words", 0, "-p -f -d", "", False),
    "docker podman nerdctl": ("words", 1, _DOCKER, "run exec create", True),
    "apptainer singularity": ("words", 1, _APPTAINER, "exec run shell", False),
    "enroot": ("words", 1, "-e -m -c --env --mount --conf --rc", "start exec", True),
    "shifter": ("words", 0, "-i --image -V --volume --module", "", False),
    "kubectl oc": ("words", 1, "-c -n -i --container --namespace --image", "exec run debug", True),
    "uv poetry pixi pipenv hatch rye": ("words", 0, "-p -e --with --python", "run", False),
    "conda mamba micromamba": ("words", 0, "-n -p --name --prefix --cwd", "run", False),
    "nsys": ("words", 0, _NSYS, "profile launch", False),
    "ncu": ("words", 0, "-o -k -c -s --set --section --export --kernel-name", "", False),
    "colossalai torchx": ("words", 0, "--nproc_per_node --hostfile --master_port", "run", False),
    "ssh": ("text", 1, "-B -b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w", "", True),
    "pdsh clush": ("text", 0, "-w -x -g -f -t -u -l -R -S* --worker --group", "", True),
    "eval": ("text", 0, "", "", False),
    "watch": ("text", 0, "-n --interval", "", False),
    "parallel": ("text", 0, "-j -a -S --jobs --colsep", "", False),
    "tmux screen": ("text", 0, "-s -t -S -n -c -L", "", False),
    "trap": ("first", 0, "", "", False),
    "su runuser": ("option", 1, "-s -g -u", "", False),
    "script": ("option", 1, "", "", False),
}  # fmt: skip
WRAPPERS: Final = {
    name: Program(family, runs, operands, frozenset(takes.split()), frozenset(verbs.split()), far)
    for names, (runs, operands, takes, verbs, far) in _TABLE.items()
    for family in names.split()[:1]
    for name in names.split()
}
"""A ``*`` behind an option says that it takes two words."""


def family_of(program: str) -> str:
    """The family of a program that runs others; empty for any other."""
    wrapper = WRAPPERS.get(program)
    return wrapper.family if wrapper else ""


RUNS: Final = frozenset(
    {
        *SHELLS, *PYTHONS, *WRAPPERS,
        *("torchrun", "accelerate", "deepspeed", "horovodrun", "composer", "tune", "axolotl"),
        *("securetrain", "ray", "tensorboard", "jupyter", "jupyter-lab", "jupyter-notebook"),
        *("jupyterhub", "start-notebook.sh", "start-singleuser.sh", "start-notebook.py"),
        *("etcd", "sshd", "gdbserver", "debugpy", "vllm", "sglang", "mlflow", "lldb-server"),
        *("pip", "apt", "apt-get", "npm", "yum", "dnf", "apk", "git", "curl", "wget", "aws"),
        *("huggingface-cli", "hf", "wandb", "scp", "rsync", "etcdctl"),
    }
) - {"builtin", "command", "time"}  # fmt: skip
"""Programs that are found among a wrapper's words, whatever stands before them."""


def program_of(arg: Arg) -> str:
    """The program's name without its folder, and without the version behind ``python``."""
    name = PurePosixPath(arg.text.strip()).name or arg.text
    return re.sub(r"^(python|pip)[0-9.]+\Z", r"\1", name)


def inner(name: str, args: tuple[Arg, ...]) -> int:  # noqa: C901 - the rules of one walk
    """The number of the first word that a wrapper runs; as many as there are words if none is."""
    wrapper = WRAPPERS[name]
    operands, verbs = wrapper.operands, wrapper.verbs
    first, i = len(args), 0
    while i < len(args):
        text = args[i].text
        if text == "--" and not verbs:
            first = i + 1 + operands * (not wrapper.far)
            break
        if text.startswith("-") and (len(text) > 1 or name == "env"):
            last = f"-{text[-1]}" if re.fullmatch(r"-[A-Za-z]{2,3}", text) else ""
            i += 1 + bool({text, last} & wrapper.takes) + 2 * (f"{text}*" in wrapper.takes)
            continue
        if args[i].rest:  # options, or the host or image in front of what is run
            following = program_of(args[i + 1]) if i + 1 < len(args) else ""
            operands -= bool(operands and (wrapper.runs == "text" or following in RUNS))
        elif re.match(r"\w+=", text) and wrapper.runs == "words":
            pass
        elif verbs:
            if text not in {*verbs, "container"}:
                return len(args)
            verbs = verbs if text == "container" else frozenset()
        elif operands:
            operands -= 1
        else:
            first = i
            break
        i += 1
    if wrapper.runs != "words" or (first < len(args) and program_of(args[first]) in RUNS):
        return first
    for i in range(first, len(args)):
        if program_of(args[i]) in RUNS and not args[i - 1].text.startswith("-"):
            return i
    return first
