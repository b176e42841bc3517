#!/bin/sh
# Builds a kernel for guests of the arm64 host from Debian's source and guest-kernel.config, and prints the path of its image, for
# `vmtax lab run --guest-kernel`. Its version is the argument (7.3). It takes 9 minutes of processor time, and 3 GB while it is built.
# Debian's packages of the compiler and of what a kernel's build needs must be there: it says which are not. Nothing is installed: apt gets a
# configuration and package lists of its own in the cache.
set -eu
fail() { printf 'guest-kernel: %s\n' "$*" >&2; exit 1; }
version=${1:-7.3}
here=$(dirname "$(readlink -f "$0")")
folder=${XDG_CACHE_HOME:-$HOME/.cache}/vmtax/guest-kernel-$version
if [ ! -e "$folder/Image" ] || ! cmp -s "$here/guest-kernel.config" "$folder/config"; then
  command -v apt-get >/dev/null || fail "there is no apt-get"
  missing=
  for pair in aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu make:make flex:flex bison:bison bc:bc; do
    command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair##*:}"
  done
  [ -z "$missing" ] || fail "install$missing"
  rm -rf "$folder.new"
  mkdir -p "$folder.new/lists/partial" "$folder.new/archives/partial"
  cd "$folder.new"
  : > status
  for suite in trixie trixie-backports; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main"
  done > sources.list
  printf 'Dir::Etc::SourceList "%s/sources.list";\nDir::Etc::SourceParts "/dev/null";\nDir::State::Lists "%s/lists";\nDir::Cache "%s";\nDir::State::status "%s/status";\n' \
    "$PWD" "$PWD" "$PWD" "$PWD" > apt.conf
  export APT_CONFIG="$PWD/apt.conf"
  { apt-get update -qq && apt-get -qq download "linux-source-$version"; } > log 2>&1 ||
    fail "$(tail -n 1 log) ($folder.new/log)"
  dpkg -x ./linux-source-*.deb . && tar xf usr/src/linux-source-*.tar.xz
  cp "$here/guest-kernel.config" config
  cd linux-source-*
  {
    make -s ARCH=arm64 CROSS_COMPILE=aarch64-linux-gnu- KCONFIG_ALLCONFIG=../config allnoconfig &&
      make -s ARCH=arm64 CROSS_COMPILE=aarch64-linux-gnu- KBUILD_BUILD_TIMESTAMP=@0 -j"$(nproc)" Image
  } > ../log 2>&1 || fail "the build ended with: $(tail -n 1 ../log) ($folder.new/log)"
  while read -r line; do
    case $line in
    CONFIG_*) grep -qx "$line" .config || fail "Linux $version has no $line" ;;
    esac
  done < ../config
  cp arch/arm64/boot/Image ../Image
  cd ..
  rm -rf linux-source-* ./*.deb usr lists archives ./*.bin status log sources.list apt.conf
  rm -rf "$folder"
  mv "$folder.new" "$folder"
fi
printf '%s\n' "$folder/Image"
