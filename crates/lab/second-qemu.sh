#!/bin/sh
# Unpacks QEMU of a Debian release's backports, which is newer than the release's, and prints its folder of programs: for VMTAX_SECOND_QEMU, or to
# put first on PATH. Without an argument that of this computer's release; of another release (trixie) it comes with all its libraries.
# Nothing is installed: apt gets a configuration and package lists of its own in the cache.
set -eu
fail() { printf 'second-qemu: %s\n' "$*" >&2; exit 1; }
command -v apt-get >/dev/null || fail "there is no apt-get"
own=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
codename=${1:-$own}
grep -q '^ID=debian' /etc/os-release || fail "this is no Debian, and only its backports are known"
folder=${XDG_CACHE_HOME:-$HOME/.cache}/vmtax/second-qemu-$codename
if [ ! -x "$folder/usr/bin/qemu-system-x86_64" ]; then
  rm -rf "$folder.new"
  mkdir -p "$folder.new/lists/partial" "$folder.new/archives/partial"
  cd "$folder.new"
  for suite in "$codename" "$codename-backports"; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main"
  done > sources.list
  printf 'Dir::Etc::SourceList "%s/sources.list";\nDir::Etc::SourceParts "/dev/null";\nDir::State::Lists "%s/lists";\nDir::Cache "%s";\n' \
    "$PWD" "$PWD" "$PWD" > apt.conf
  # Of another release all that QEMU depends on is fetched, as if nothing were installed.
  packages='download qemu-system-x86 qemu-system-common qemu-system-data'
  if [ "$codename" != "$own" ]; then
    : > status
    printf 'Dir::State::status "%s/status";\n' "$PWD" >> apt.conf
    packages='install --download-only --no-install-recommends -y qemu-system-x86'
  fi
  export APT_CONFIG="$PWD/apt.conf"
  { apt-get update -qq && apt-get -qq -t "$codename-backports" $packages; } > apt.log 2>&1 ||
    fail "$(tail -n 1 apt.log) ($folder.new/apt.log)"
  for package in ./*.deb archives/*.deb; do [ ! -e "$package" ] || dpkg -x "$package" .; done
  rm -rf ./*.deb lists archives ./*.bin lock* status var
  if [ "$codename" != "$own" ]; then
    # Its own loader and libraries; with another loader QEMU does not find its files by itself.
    mv usr/bin/qemu-system-x86_64 usr/bin/qemu-system-x86_64.real
    cat > usr/bin/qemu-system-x86_64 <<'END'
#!/bin/sh
root=$(dirname "$(dirname "$(dirname "$(readlink -f "$0")")")")
libraries=$root/usr/lib/x86_64-linux-gnu
export QEMU_MODULE_DIR="$libraries/qemu"
exec "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$libraries:$libraries/pulseaudio" "$root/usr/bin/qemu-system-x86_64.real" \
  -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" "$@"
END
    chmod +x usr/bin/qemu-system-x86_64
  fi
  usr/bin/qemu-system-x86_64 --version > apt.log 2>&1 || fail "the unpacked QEMU does not run: $(head -n 1 apt.log)"
  rm -rf "$folder"
  mv "$folder.new" "$folder"
fi
printf '%s\n' "$folder/usr/bin"
