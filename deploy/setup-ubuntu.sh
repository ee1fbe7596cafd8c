#!/bin/bash
# Make a bare Ubuntu machine with an NVIDIA GPU ready for docker-compose.yml. Run it as often as you like: what is there
# stays. deploy/setup-ubuntu.md says what it does and does not.
#
#   sudo deploy/setup-ubuntu.sh --dry-run     # print each command, change nothing
#   sudo deploy/setup-ubuntu.sh
#
# NVIDIA's container toolkit is in no repository of Ubuntu. Where it is not installed yet, give what the chapter
# "Installing the NVIDIA Container Toolkit" of NVIDIA's documents names for apt:
#
#   WARPDESK_TOOLKIT_REPOSITORY   what stands after `deb [signed-by=...]`, "https://... /"
#   WARPDESK_TOOLKIT_KEY          the file of its signing key, downloaded and looked at by you

set -euo pipefail

# The oldest driver of CUDA 12 on Linux (CUDA 12.9 release notes, table of minor version compatibility). The doctor
# knows the same.
oldest_driver=525.60.13
uid=10001 # of the image
root=${DESTDIR:-} # where files go instead of /, for images and tests
dry_run=

refuse() {
  printf 'setup-ubuntu: %s\n' "$*" >&2
  exit 1
}

say() {
  printf '%s\n' "$*"
}

# run COMMAND...: do it, or print it.
run() {
  if [[ -n $dry_run ]]; then
    printf '+'
    printf ' %q' "$@"
    printf '\n'
  else
    "$@"
  fi
}

# put FILE MODE: write standard input there unless it is there already; succeeds where something changed.
put() {
  local file=$root$1 mode=$2 content
  content=$(cat)
  if [[ -f $file && $(<"$file") == "$content" ]]; then
    return 1
  fi
  if [[ -n $dry_run ]]; then
    printf '+ write %s (%s):\n' "$file" "$mode"
    printf '%s\n' "$content" | sed 's/^/    /'
  else
    # Whoever asks whether something changed must not take a failure for a no.
    mkdir -p "$(dirname "$file")" || refuse "$file cannot be written"
    printf '%s\n' "$content" | install --mode="$mode" /dev/stdin "$file" || refuse "$file cannot be written"
  fi
}

installed() {
  dpkg-query --show --showformat='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'
}

# older A B: whether version A comes before B.
older() {
  [[ $1 != "$2" && $(printf '%s\n%s\n' "$1" "$2" | sort --version-sort | head -n 1) == "$1" ]]
}

for argument in "$@"; do
  case $argument in
    --dry-run) dry_run=yes ;;
    *) refuse "unknown option $argument: there is --dry-run" ;;
  esac
done

# What must be so.

system=$root/etc/os-release
[[ -r $system ]] || refuse "there is no $system: this is for Ubuntu"
name=$(sed -n 's/^ID=//p' "$system" | tr -d '"')
release=$(sed -n 's/^VERSION_ID=//p' "$system" | tr -d '"')
[[ $name == ubuntu ]] || refuse "this is ${name:-an unknown system} and not Ubuntu: do by hand what deploy/setup-ubuntu.md lists"
older "$release" 22.04 && refuse "this is Ubuntu $release; docker-compose-v2 comes with 22.04 and later"
[[ $(id -u) == 0 ]] || refuse "packages and units need root: sudo $0 $*"

command -v nvidia-smi >/dev/null || refuse "there is no NVIDIA driver: \`ubuntu-drivers install --gpgpu\`, restart, and run this again"
gpus=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>&1) ||
  refuse "nvidia-smi reaches no GPU; after an update of the driver a restart helps. It says: $gpus"
driver=$(printf '%s\n' "$gpus" | head -n 1 | sed 's/.*, *//')
[[ $driver =~ ^[0-9]+(\.[0-9]+)+$ ]] || refuse "nvidia-smi names no driver version: $gpus"
older "$driver" "$oldest_driver" && refuse "the driver is $driver, and CUDA 12.9 needs $oldest_driver or newer: \`ubuntu-drivers install --gpgpu\`, and restart"
say "GPU and driver: $gpus"

taken=$(getent passwd "$uid" | cut -d: -f1 || true)
[[ -z $taken || $taken == warpdesk ]] || refuse "the user id $uid, which containers run as, belongs to $taken"
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[[ -f $project/docker-compose.yml ]] || refuse "there is no $project/docker-compose.yml: run this from a checkout of Warpdesk"

# Containers read these files as another user; under umask 077 nobody but their owner can.

if [[ -n $(find "$project/deploy" \( ! -perm -go=r -o -type d ! -perm -go=x \) -print -quit) ]]; then
  run chmod --recursive go+rX "$project/deploy"
fi

# Packages: Docker and Compose are Ubuntu's own, so that one vendor less is trusted and updates come with the system's.
# Compose builds by buildx, which it does not bring: newer ones refuse to build without it.

missing=()
for package in docker.io docker-buildx docker-compose-v2; do
  installed "$package" || missing+=("$package")
done
# Docker's own packages do as well, and clash with Ubuntu's.
installed docker-ce && missing=()
if ! installed nvidia-container-toolkit; then
  [[ -n ${WARPDESK_TOOLKIT_REPOSITORY:-} ]] || refuse "nvidia-container-toolkit is not installed, and WARPDESK_TOOLKIT_REPOSITORY does not name its repository: see the head of $0"
  [[ -f ${WARPDESK_TOOLKIT_KEY:-} && -s $WARPDESK_TOOLKIT_KEY ]] || refuse "WARPDESK_TOOLKIT_KEY names no file with the signing key of that repository: ${WARPDESK_TOOLKIT_KEY:-unset}"
  [[ $WARPDESK_TOOLKIT_REPOSITORY == https://* ]] || refuse "WARPDESK_TOOLKIT_REPOSITORY is no https:// address: $WARPDESK_TOOLKIT_REPOSITORY"
  keyring=/usr/share/keyrings/nvidia-container-toolkit.gpg
  if [[ $(head -c 5 "$WARPDESK_TOOLKIT_KEY") == -----* ]]; then
    run gpg --batch --yes --dearmor --output "$root$keyring" "$WARPDESK_TOOLKIT_KEY"
  else
    run install -D --mode=0644 "$WARPDESK_TOOLKIT_KEY" "$root$keyring"
  fi
  put /etc/apt/sources.list.d/nvidia-container-toolkit.list 0644 <<<"deb [signed-by=$keyring] $WARPDESK_TOOLKIT_REPOSITORY" || true
  missing+=(nvidia-container-toolkit)
fi
if ((${#missing[@]})); then
  run apt-get update
  run env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${missing[@]}"
fi

# Docker learns of the GPU.

if ! grep -qs '"nvidia"' "$root/etc/docker/daemon.json"; then
  run nvidia-ctk runtime configure --runtime=docker
  run systemctl restart docker
fi

# The user of the containers, who can log in nowhere.

if [[ -z $taken ]]; then
  run groupadd --system --gid "$uid" warpdesk
  run useradd --system --uid "$uid" --gid "$uid" --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin warpdesk
fi

# Redis forks to rewrite its file, and copies no more than what changes meanwhile: the kernel must allow it.

if put /etc/sysctl.d/60-warpdesk.conf 0644 <<<'vm.overcommit_memory = 1'; then
  run sysctl --quiet --load "$root/etc/sysctl.d/60-warpdesk.conf"
fi

# What the compose file may be told (WARPDESK_PRICES, say): yours, made once.

if [[ ! -d $root/etc/warpdesk ]]; then
  run install --directory --mode=0700 "$root/etc/warpdesk"
fi
if [[ ! -e $root/etc/warpdesk/compose.env ]]; then
  put /etc/warpdesk/compose.env 0600 <<<'# NAME=value for docker-compose.yml, see deploy/compose/README.md' || true
fi

# A stop lets each container end in its own time (stop_grace_period), one after the other: workers, the API, Redis.

if put /etc/systemd/system/warpdesk.service 0644 <<E_O_F
[Unit]
Description=Warpdesk
Requires=docker.service
After=docker.service network-online.target
Wants=network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
WorkingDirectory=$project
EnvironmentFile=/etc/warpdesk/compose.env
ExecStart=/usr/bin/docker compose --profile gpu up --detach --remove-orphans
ExecStop=/usr/bin/docker compose --profile gpu stop
TimeoutStartSec=1800
TimeoutStopSec=600

[Install]
WantedBy=multi-user.target
E_O_F
then
  run systemctl daemon-reload
  run systemctl enable warpdesk.service
fi

say "Ready: \`systemctl start warpdesk\` builds the images and starts the stack."
say "Firewall: every port is on 127.0.0.1. Docker's published ports go past ufw, so what is to be reached from elsewhere goes through a proxy with TLS on this machine, and not through another address in docker-compose.yml."
