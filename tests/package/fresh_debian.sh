#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves the two commands of the README on a fresh Debian 12: makes a minimal bookworm in a folder, clones the
# committed state of this repository into it and runs ./usp.sh test and ./usp.sh demo there, then both again
# without a network. Prints the time of each step. Needs root, debootstrap, git, unshare, ip and a Debian mirror;
# takes several minutes, so it is not part of ctest.
#
#   sudo tests/package/fresh_debian.sh [FOLDER]     FOLDER (default: a temporary one) must not exist; it is
#                                                   kept, for a look around with chroot
#   MIRROR=http://...   another mirror than deb.debian.org
#   BASE=DIR            copy this untouched bookworm instead of fetching one
#   COMMANDS="test"     other than "test demo"
set -euo pipefail

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
root=${1:-$(mktemp -d)/bookworm}
mirror=${MIRROR:-http://deb.debian.org/debian}
read -ra commands <<<"${COMMANDS:-test demo}"

[[ $(id -u) -eq 0 ]] || { echo "fresh_debian.sh: needs root (debootstrap and chroot)" >&2; exit 5; }
[[ ! -e $root ]] || { echo "fresh_debian.sh: $root exists; name a new folder" >&2; exit 2; }
for tool in debootstrap git unshare ip; do
  command -v "$tool" >/dev/null || { echo "fresh_debian.sh: needs $tool" >&2; exit 5; }
done

times=()
timed() {
  local what=$1 start=$SECONDS status=0
  shift
  echo "== $what" >&2
  "$@" || status=$?
  times+=("$(printf '%-32s %4d s  exit %d' "$what" $((SECONDS - start)) "$status")")
  return "$status"
}

# Runs a command in the new machine, with nothing of this one's environment but its proxy. A mount namespace of
# its own takes /proc away again when the command ends. Without a network there is still the loopback interface:
# mpirun needs one.
# shellcheck disable=SC2016,SC2086,SC2317  # expanded by the inner shell; may be empty; called through timed
inside() {
  local network=$1 script
  shift
  script='set -e
    mkdir -p "$0/dev/pts"
    mount -t proc proc "$0/proc"
    mount -t sysfs sys "$0/sys"
    mount -t devpts pts "$0/dev/pts"
    ip link set lo up
    exec chroot "$0" "$@"'
  unshare --mount $network bash -c "$script" "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    ${http_proxy:+"http_proxy=$http_proxy"} ${https_proxy:+"https_proxy=$https_proxy"} \
    bash -c 'cd /srv/usp && "$@"' bash "$@"
}

mkdir -p "$(dirname "$root")"
if [[ -n ${BASE:-} ]]; then
  timed "copy $BASE" cp -a "$BASE" "$root"
else
  timed debootstrap debootstrap --variant=minbase bookworm "$root" "$mirror" >"$root.log" 2>&1 ||
    { tail -5 "$root.log" >&2; exit 5; }
fi
cp /etc/resolv.conf "$root/etc/resolv.conf"
git clone -q "$source_dir" "$root/srv/usp"

failed=0
timed "install-deps" inside "" ./usp.sh install-deps || failed=1
timed "build" inside "" ./usp.sh build || failed=1
for command in "${commands[@]}"; do
  timed "$command" inside "" ./usp.sh "$command" || failed=1
done
for command in "${commands[@]}"; do
  timed "$command, again, no network" inside --net ./usp.sh "$command" || failed=1
done
echo
printf '%s\n' "$(git -C "$root/srv/usp" log -1 --format='%h %s')" "${times[@]}" "kept: $root"
exit "$failed"
