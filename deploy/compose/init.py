"""Make what the stack needs before its first start: Redis' users, the ledger's key, Grafana's password, an API key.

Run by the service `init` of docker-compose.yml: init.py VOLUMES USERS. What is there stays as it is. Nothing that is
secret is printed; each file is for its owner alone, in a volume that only the services which need it mount.
"""

import os
import secrets
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from warpdesk_server.app.access.keys import UnusableKeys, require_key_file
from warpdesk_server.privacy.seeds import Ring

UNUSABLE = "#" + "0" * 64  # in deploy/redis/users.acl where a password's digest belongs
SHOW = "docker compose run --rm --no-deps init cat /volumes/secrets/operator"


def main(volumes: Path, users: Path) -> None:
    folder = volumes / "secrets"
    acl = folder / "redis" / "users.acl"
    if not acl.exists():  # it is written last: what an interrupted start left is made anew
        passwords = {user: secrets.token_hex(32) for user in ("operator", "api", "worker", "monitor")}
        for user in ("api", "worker"):
            write(folder / user / "redis_url", f"redis://{user}:{passwords[user]}@redis:6379/0")
        write(folder / "redis" / "monitor_password", passwords["monitor"])
        write(folder / "operator" / "redis_password", passwords["operator"])
        text = users.read_text()
        for user, password in passwords.items():
            nobody = f"user {user} on {UNUSABLE} "
            if nobody not in text:
                sys.exit(f"{users} has no user {user} without a password: take the one of this release")
            text = text.replace(nobody, f"user {user} on #{sha256(password.encode()).hexdigest()} ")
        write(acl, text)
    Ring(volumes / "ledger-key" / "ledger.key")  # which makes it where there is none
    if not (folder / "grafana" / "admin_password").exists():
        password = secrets.token_urlsafe(24)
        write(folder / "operator" / "grafana_password", password)
        write(folder / "grafana" / "admin_password", password)
    home = Path(os.environ["WARPDESK_HOME"])
    try:
        require_key_file(home / "keys.json", home)
    except UnusableKeys as error:
        sys.exit(str(error))
    if not (home / "keys.json").exists():
        command = ["warpdesk", "keys", "create", "first", "--scopes", "submit,read,cancel,admin"]
        token = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        write(folder / "operator" / "api_key", token.strip())
    for whose in ("page", "ticket"):
        if not (folder / "alertmanager" / f"{whose}_url").exists():
            sys.stdout.write(f"Nobody is told of a {whose}: deploy/prometheus/README.md says how to change that\n")
    sys.stdout.write(f"The first API key:          {SHOW}/api_key\n")
    sys.stdout.write(f"Grafana's password (admin): {SHOW}/grafana_password\n")


def write(path: Path, text: str) -> None:
    """Under its name it is whole, and only its owner reads it."""
    unfinished = path.with_name(f".{path.name}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    unfinished.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
