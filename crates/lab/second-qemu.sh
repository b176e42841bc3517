#!/bin/sh
# Unpacks QEMU of Debian's backports, which is newer than the release's, and prints its folder of programs: for VMTAX_SECOND_QEMU, or to put first on PATH.
# Nothing is installed: apt gets a configuration and package lists of its own in the cache.
set -eu
fail() { printf 'second-qemu: %s\n' "$*" >&2; exit 1; }
command -v apt-get >/dev/null || fail "there is no apt-get"
codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
grep -q '^ID=debian' /etc/os-release || fail "this is no Debian, and only its backports are known"
folder=${XDG_CACHE_HOME:-$HOME/.cache}/vmtax/second-qemu-$codename
if [ ! -x "$folder/usr/bin/qemu-system-x86_64" ]; then
  rm -rf "$folder.new"
  mkdir -p "$folder.new/lists/partial" "$folder.new/archives/partial"
  cd "$folder.new"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $codename-backports main" > sources.list
  printf 'Dir::Etc::SourceList "%s/sources.list";\nDir::Etc::SourceParts "/dev/null";\nDir::State::Lists "%s/lists";\nDir::Cache "%s/archives";\n' \
    "$PWD" "$PWD" "$PWD" > apt.conf
  export APT_CONFIG="$PWD/apt.conf"
  { apt-get update -qq && apt-get download -qq -t "$codename-backports" qemu-system-x86 qemu-system-common qemu-system-data; } > apt.log 2>&1 ||
    fail "$(tail -n 1 apt.log) ($folder.new/apt.log)"
  for package in ./*.deb; do dpkg -x "$package" .; done
  rm -rf ./*.deb lists archives
  usr/bin/qemu-system-x86_64 --version > apt.log 2>&1 || fail "the unpacked QEMU does not run: $(head -n 1 apt.log)"
  rm -rf "$folder"
  mv "$folder.new" "$folder"
fi
printf '%s\n' "$folder/usr/bin"
