# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keys, tokens and SSH."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.audit.hardened import keys
from tests.audit.hardened.faults import Bad, all_of, env, text
from tests.audit.hardened.machine import MOUNTS, SSHD, Machine, mount

MAIN, DROP_IN = "/etc/ssh/sshd_config", "/etc/ssh/sshd_config.d/60.conf"
OPENSSH = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA{}AAAA=\n"
PRIVATE = "-----BEGIN RSA PRIVATE KEY-----\n"

BAD: Mapping[str, Bad] = {
    # sshd: order, includes, blocks
    "sshd-comment-is-no-include": Bad(
        "ST-SEC-007",
        all_of(
            lambda m: m.write(MAIN, "#" + SSHD.replace("PasswordAuthentication no\n", "")),
            lambda m: m.write(DROP_IN, "PasswordAuthentication no\n"),
        ),
        MAIN,
    ),
    "sshd-include-after-own-lines": Bad(
        "ST-SEC-007",
        all_of(
            lambda m: m.write(MAIN, f"PasswordAuthentication yes\n{SSHD}"),
            lambda m: m.write(DROP_IN, "PasswordAuthentication no\n"),
        ),
        MAIN,
    ),
    "sshd-include-first": text("ST-SEC-007", DROP_IN, "PermitRootLogin yes\n", subject=True),
    "sshd-include-elsewhere": Bad(
        "ST-SEC-007",
        all_of(
            lambda m: m.write(MAIN, f"Include /opt/site.conf # ours\n{SSHD}"),
            lambda m: m.write("/opt/site.conf", "PasswordAuthentication=yes\n"),
        ),
        "/opt/site.conf",
        is_subject=True,
    ),
    "sshd-match": text(
        "ST-SEC-007", MAIN, f"{SSHD}Match User backup\n\tPasswordAuthentication yes # why\n"
    ),
    "sshd-match-all-opens": text(
        "ST-SEC-007", DROP_IN, "Match all\nPasswordAuthentication yes\n", subject=True
    ),
    "sshd-match-in-drop-in": text(
        "ST-SEC-007", DROP_IN, "Match Address 10.*\n permitrootlogin yes\n", subject=True
    ),
    "sshd-include-in-match": Bad(
        "ST-SEC-007",
        all_of(
            lambda m: m.write(MAIN, f"{SSHD}Match all\nInclude opt.conf\n"),
            lambda m: m.write("/etc/ssh/opt.conf", 'KbdInteractiveAuthentication "yes"\n'),
        ),
        MAIN,
    ),
    "sshd-keyboard-interactive": text(
        "ST-SEC-007",
        MAIN,
        "PermitRootLogin no\nPasswordAuthentication no\nChallengeResponseAuthentication yes\n",
    ),
    "sshd-cut-short": text("ST-SEC-007", MAIN, ""),
    # ssh
    "ssh-unchecked-with-comment": text(
        "ST-SEC-006", "/home/me/.ssh/config", "StrictHostKeyChecking no # why\n", subject=True
    ),
    "ssh-unchecked-in-drop-in": Bad(
        "ST-SEC-006",
        all_of(
            lambda m: m.write("/etc/ssh/ssh_config", "Include ssh_config.d/*.conf\n"),
            lambda m: m.write("/etc/ssh/ssh_config.d/a.conf", "UserKnownHostsFile=/dev/null\n"),
        ),
        "/etc/ssh/ssh_config.d/a.conf",
        is_subject=True,
    ),
    # identity
    "personal-access-token": env("ST-SEC-001", GITHUB_PAT="github_pat_x"),
    "password-in-url": env("ST-SEC-001", DATABASE_URL="postgres://u:pw@h/db"),
    "key-in-clear-on-a-server": Bad(
        "ST-SEC-005",
        all_of(
            lambda m: m.write(
                "/proc/self/mountinfo", MOUNTS + mount("/home", "nfs4", "rw,nodev,nosuid")
            ),
            lambda m: m.write("/home/me/.ssh/id_ed25519", OPENSSH.format("AAAABG5vbmU"), 0o600),
        ),
        "/home/me/.ssh/id_ed25519",
        is_subject=True,
        also=frozenset({"ST-SEC-003", "ST-CKP-015"}),
    ),
    "node-key-open": Bad(
        "ST-SEC-010",
        lambda m: m.write(f"{keys.FOLDER}/node.pem", "", 0o640),
        also=frozenset({"ST-RDZ-015"}),
    ),
    "node-certificate-ended": text(
        "ST-SEC-010", f"{keys.FOLDER}/node.crt", keys.leaf(hours_ago=30)
    ),
    "node-of-another-authority": text(
        "ST-SEC-011", f"{keys.FOLDER}/ca.crt", keys.anchor(name="run-8")
    ),
    "authority-ended": text("ST-SEC-011", f"{keys.FOLDER}/ca.crt", keys.anchor(days_ago=4000)),
    "authority-on-the-node": Bad(
        "ST-SEC-011",
        all_of(
            lambda m: m.write("/etc/securetrain/ca/ca.pem", "", 0o600),
            lambda m: m.write("/etc/securetrain/ca/ca.crt", keys.anchor()),
        ),
        "/etc/securetrain/ca/ca.pem",
        is_subject=True,
    ),
    "authority-key-open": Bad(
        "ST-RDZ-015",
        all_of(
            lambda m: m.write("/etc/securetrain/ca/ca.pem", "", 0o644),
            lambda m: m.write("/etc/securetrain/ca/ca.crt", keys.anchor()),
        ),
        also=frozenset({"ST-SEC-011"}),
    ),
    "key-of-another-name": Bad(
        "ST-SEC-003", lambda m: m.write("/home/me/.ssh/cluster", PRIVATE, 0o644)
    ),
    "key-in-another-folder": Bad(
        "ST-SEC-003",
        all_of(
            lambda m: m.write("/home/me/.ssh/config", "Host gpu\nIdentityFile ~/Keys/Gpu.pem\n"),
            lambda m: m.write("/home/me/Keys/Gpu.pem", PRIVATE, 0o640),
        ),
    ),
}

GOOD: Mapping[str, tuple[str, Callable[[Machine], Any]]] = {
    "sshd-include-wins": (
        "ST-SEC-007",
        all_of(
            lambda m: m.append(MAIN, "PasswordAuthentication yes\n"),
            lambda m: m.write(DROP_IN, "PasswordAuthentication no\n"),
        ),
    ),
    "sshd-match-ends-with-its-file": (
        "ST-SEC-007",
        lambda m: m.write(DROP_IN, "Match User x\nPasswordAuthentication no\n"),
    ),
    "sshd-match-that-closes": (
        "ST-SEC-007",
        lambda m: m.append(MAIN, "Match User x\nPermitRootLogin no\n"),
    ),
    "sshd-match-all": (
        "ST-SEC-007",
        all_of(
            lambda m: m.write(MAIN, "PasswordAuthentication yes\nPermitRootLogin yes\n"),
            lambda m: m.append(MAIN, "KbdInteractiveAuthentication no\nMatch all\n"),
            lambda m: m.append(MAIN, "PasswordAuthentication no\nPermitRootLogin no\n"),
        ),
    ),
    "ssh-settled-before": (
        "ST-SEC-006",
        lambda m: m.append("/etc/ssh/ssh_config", "Host x\nStrictHostKeyChecking no\n"),
    ),
    "agent": ("ST-SEC-001", lambda m: m.environ.update(SSH_AUTH_SOCK="/run/agent")),
    "mode-of-secrets": ("ST-SEC-001", lambda m: m.environ.update(SECRETS_MODE="file")),
    "length-of-passwords": ("ST-SEC-001", lambda m: m.environ.update(PASSWORD_MIN="12")),
    "switch": ("ST-SEC-001", lambda m: m.environ.update(USE_AUTH_TOKEN="True")),
    "key-of-its-own": (
        "ST-SEC-003",
        lambda m: m.write("/home/me/.ssh/cluster", PRIVATE, 0o600),
    ),
    "known-hosts": ("ST-SEC-003", lambda m: m.write("/home/me/.ssh/known_hosts", "h k\n", 0o644)),
    "key-with-a-passphrase-on-a-server": (
        "ST-SEC-005",
        all_of(
            lambda m: m.write("/proc/self/mountinfo", MOUNTS + mount("/home", "nfs4")),
            lambda m: m.write(
                "/home/me/.ssh/id_ed25519", OPENSSH.format("AAAACmFlczI1Ni1j"), 0o600
            ),
            lambda m: m.write("/home/me/.ssh/a", "-----BEGIN ENCRYPTED PRIVATE KEY-----\n", 0o600),
        ),
    ),
}
