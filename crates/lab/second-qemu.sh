#!/bin/sh
# Unpacks QEMU of a Debian release's backports, which is newer than the release's, and prints its folder of programs: for VMTAX_SECOND_QEMU, or to
# put first on PATH. Without an argument that of this computer's release; of another release (trixie) it comes with all its libraries. With arm as
# the second argument it is the emulator of arm64, which nested virtualization there needs from QEMU 10 on.
# Nothing is installed: apt gets a configuration and package lists of its own in the cache.
set -eu
fail() { printf 'second-qemu: %s\n' "$*" >&2; exit 1; }
command -v apt-get >/dev/null || fail "there is no apt-get"
own=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
codename=${1:-$own}
grep -q '^ID=debian' /etc/os-release || fail "this is no Debian, and only its backports are known"
case ${2:-x86} in
x86) program=qemu-system-x86_64 suffix= ;;
arm) program=qemu-system-aarch64 suffix=-arm ;;
*) fail "there is x86 and arm, and no '$2'" ;;
esac
package=qemu-system-${2:-x86}
folder=${XDG_CACHE_HOME:-$HOME/.cache}/vmtax/second-qemu-$codename$suffix
if [ ! -x "$folder/usr/bin/$program" ]; then
  rm -rf "$folder.new"
  mkdir -p "$folder.new/lists/partial" "$folder.new/archives/partial"
  cd "$folder.new"
  for suite in "$codename" "$codename-backports"; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main"
  done > sources.list
  printf 'Dir::Etc::SourceList "%s/sources.list";\nDir::Etc::SourceParts "/dev/null";\nDir::State::Lists "%s/lists";\nDir::Cache "%s";\n' \
    "$PWD" "$PWD" "$PWD" > apt.conf
  # Of another release all that QEMU depends on is fetched, as if nothing were installed.
  packages="download $package qemu-system-common qemu-system-data"
  if [ "$codename" != "$own" ]; then
    : > status
    printf 'Dir::State::status "%s/status";\n' "$PWD" >> apt.conf
    packages="install --download-only --no-install-recommends -y $package"
  fi
  export APT_CONFIG="$PWD/apt.conf"
  { apt-get update -qq && apt-get -qq -t "$codename-backports" $packages; } > apt.log 2>&1 ||
    fail "$(tail -n 1 apt.log) ($folder.new/apt.log)"
  for file in ./*.deb archives/*.deb; do [ ! -e "$file" ] || dpkg -x "$file" .; done
  rm -rf ./*.deb lists archives ./*.bin lock* status var
  if [ "$codename" != "$own" ]; then
    # Its own loader and libraries; with another loader QEMU does not find its files by itself.
    mv "usr/bin/$program" "usr/bin/$program.real"
    cat > "usr/bin/$program" <<'END'
#!/bin/sh
program=$(readlink -f "$0")
root=$(dirname "$(dirname "$(dirname "$program")")")
libraries=$root/usr/lib/x86_64-linux-gnu
export QEMU_MODULE_DIR="$libraries/qemu"
exec "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$libraries:$libraries/pulseaudio" "$program.real" \
  -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" "$@"
END
    chmod +x "usr/bin/$program"
  fi
  "usr/bin/$program" --version > apt.log 2>&1 || fail "the unpacked QEMU does not run: $(head -n 1 apt.log)"
  rm -rf "$folder"
  mv "$folder.new" "$folder"
fi
printf '%s\n' "$folder/usr/bin"
