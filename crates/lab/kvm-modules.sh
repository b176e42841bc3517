#!/bin/sh
# Rebuilds KVM's modules for a kernel of Debian's archive with CONFIG_KVM_SW_PROTECTED_VM, which no distribution sets: without it
# no private memory can be had on an emulated host. `./x kvm-modules RELEASE` runs this.
#
#   kvm-modules.sh RELEASE [CACHE]     RELEASE as `uname -r` gives it: 6.12.117+deb12-amd64
#
# The kernel itself stays the distribution's. All packages come through apt and must have one version: the image, its headers, the
# kbuild programs, and the source. Only arch/x86/kvm and virt/kvm are compiled, about 130 s of CPU. Nothing is installed. A kernel of
# another release of Debian than this system's is found in the lists of `vmtax lab run --kernel debian:VERSION`.
#
#   CACHE/kvm-modules/RELEASE/  boot/vmlinuz-RELEASE  lib/modules/RELEASE/{kvm,kvm-amd,kvm-intel,irqbypass,ccp}.ko
#                                                     lib/modules/RELEASE/LABEL
#
# LABEL says how the modules were made; vmtax keeps it in every run that uses them. The folder's name is printed.
set -eu

fail() { printf 'kvm-modules: %s\n' "$*" >&2; exit 1; }
say() { printf 'kvm-modules: %s\n' "$*" >&2; }

[ $# -ge 1 ] && [ $# -le 2 ] || fail "name a kernel release, such as 6.12.117+deb12-amd64 (apt-cache search linux-headers lists them)"
release=$1
cache=${2:-${XDG_CACHE_HOME:-$HOME/.cache}/vmtax}
case $release in
  *[!A-Za-z0-9.+~_-]*|.*) fail "$release: is no kernel release" ;;
  *-amd64) ;;
  *) fail "$release: only kernels for amd64 are built" ;;
esac
abi=${release%-amd64}
series=$(printf '%s\n' "$abi" | sed -n 's/^\([0-9]*\.[0-9]*\).*/\1/p')
[ -n "$series" ] || fail "$release: does not begin with a version"
case $(printf '%s\n' "$series" 6.8 | sort -V | head -n 1) in
  6.8) ;;
  *) fail "$release: software-protected VMs came with Linux 6.8" ;;
esac
out=$cache/kvm-modules/$release
if [ -f "$out/lib/modules/$release/LABEL" ]; then printf '%s\n' "$out"; exit 0; fi
for program in apt-get apt-cache dpkg-deb make gcc xz tar bc; do
  command -v "$program" >/dev/null || fail "$program is missing; install apt, make, gcc, xz-utils, tar and bc"
done

version_of() { apt-cache show --no-all-versions "$1" 2>/dev/null | sed -n 's/^Version: //p' | head -n 1; }
version=$(version_of "linux-headers-$release")
# Releases of Debian that are not this system's: the lists of `vmtax lab run --kernel debian:VERSION`.
if [ -z "$version" ] && [ -f "$cache/debian/.apt/apt.conf" ]; then
  export APT_CONFIG="$cache/debian/.apt/apt.conf"
  version=$(version_of "linux-headers-$release")
fi
[ -n "$version" ] ||
  fail "apt does not know linux-headers-$release; run apt-get update, or vmtax lab run --kernel debian:$series (lists of all releases of Debian)"
apt-cache madison "linux-source-$series" | grep -qF " $version " ||
  fail "apt has linux-headers-$release $version and no linux-source-$series of that version; name a release whose source it has"

# Since 6.19 the image's package is empty and depends on two others.
images=linux-image-$release=$version
if apt-cache show --no-all-versions "linux-binary-$release" >/dev/null 2>&1; then
  images="linux-binary-$release=$version linux-modules-$release=$version"
fi

mkdir -p "$cache/kvm-modules"
work=$(mktemp -d "$cache/kvm-modules/.work-XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' INT TERM
say "fetching linux $version"
# Unquoted: each word is a package.
# shellcheck disable=SC2086
( cd "$work" && apt-get -qq download $images "linux-headers-$release=$version" \
    "linux-headers-$abi-common=$version" "linux-kbuild-$abi=$version" "linux-source-$series=$version" >apt.log 2>&1 ) ||
  fail "apt-get download failed: $(grep '^E:' "$work/apt.log" | head -n 1)"
for deb in "$work"/*.deb; do dpkg-deb -x "$deb" "$work"; rm "$deb"; done

headers=$work/usr/src/linux-headers-$release
common=$work/usr/src/linux-headers-$abi-common
tar -C "$work" --xz -xf "$work/usr/src/linux-source-$series.tar.xz" "linux-source-$series/arch/x86/kvm" "linux-source-$series/virt"
cp -r "$work/linux-source-$series/arch/x86/kvm" "$common/arch/x86/"
cp -r "$work/linux-source-$series/virt" "$common/"
# The headers name their parts by the place where the packages would be installed.
sed -i "s#/usr/src/#$work/usr/src/#g" "$headers/Makefile"
# Types for BPF would take pahole; the lab needs none.
rm -f "$headers/vmlinux"
compiler=$(sed -n 's/.*CROSS_COMPILE)\(gcc[-0-9]*\).*/\1/p' "$headers/.kernelvariables" | head -n 1)
if ! command -v "$compiler" >/dev/null; then
  # An older compiler than the kernel's does not know this flag of it.
  compiler=$work/gcc
  cat > "$compiler" <<'END'
#!/bin/sh
for word do
  shift
  case $word in
    -fmin-function-alignment=*) word=-falign-functions=${word#*=} ;;
  esac
  set -- "$@" "$word"
done
exec gcc "$@"
END
  chmod +x "$compiler"
fi

# Programs of a newer Debian than this system's run with the C library of theirs.
is_newer() { ldd "$1" 2>&1 | grep -q 'version .GLIBC_[0-9.]*. not found'; }
programs=$(find "$work/usr/lib" -path '*/linux-kbuild-*' -type f -perm -u+x)
for program in $programs; do
  is_newer "$program" || continue
  if [ ! -d "$work/libc" ]; then
    say "fetching the C library that the kernel's build programs need"
    ( cd "$work" && apt-get -qq download libc6 >apt.log 2>&1 ) ||
      fail "apt-get download libc6 failed: $(grep '^E:' "$work/apt.log" | head -n 1)"
    dpkg-deb -x "$work"/libc6_*.deb "$work/libc"
    libraries=$(dirname "$(find "$work/libc" -name libc.so.6 | head -n 1)")
  fi
  mv "$program" "$program.elf"
  printf '#!/bin/sh\nexec %s --library-path %s:/lib/x86_64-linux-gnu %s "$@"\n' \
    "$libraries/ld-linux-x86-64.so.2" "$libraries" "$program.elf" > "$program"
  chmod +x "$program"
done

say "compiling KVM of $release with CONFIG_KVM_SW_PROTECTED_VM"
make -C "$headers" M="$common/arch/x86/kvm" -j"$(nproc)" CC="$compiler" KCFLAGS=-DCONFIG_KVM_SW_PROTECTED_VM=1 \
  CONFIG_KVM_SW_PROTECTED_VM=y KBUILD_MODPOST_WARN=1 modules >"$work/make.log" 2>&1 ||
  fail "KVM does not compile: $(grep -m 1 -E 'error|Error' "$work/make.log")"

new=$work/new
mkdir -p "$new/boot" "$new/lib/modules/$release"
image=$(find "$work/boot" "$work/usr/lib/modules/$release" -name "vmlinuz*" 2>/dev/null | head -n 1)
[ -n "$image" ] || fail "the packages of linux $version have no kernel image"
cp "$image" "$new/boot/vmlinuz-$release"
for module in kvm kvm-amd kvm-intel; do
  [ -f "$common/arch/x86/kvm/$module.ko" ] || fail "$module.ko was not made; $(tail -n 1 "$work/make.log")"
  objcopy --strip-debug "$common/arch/x86/kvm/$module.ko" "$new/lib/modules/$release/$module.ko"
done
for module in irqbypass ccp; do
  find "$work/lib" "$work/usr/lib" -name "$module.ko*" 2>/dev/null | head -n 1 | while read -r file; do
    cp "$file" "$new/lib/modules/$release/"
  done
done
printf 'KVM rebuilt from linux-source-%s %s with CONFIG_KVM_SW_PROTECTED_VM=y (%s)\n' "$series" "$version" \
  "$($compiler --version | head -n 1)" > "$new/lib/modules/$release/LABEL"
rm -rf --one-file-system "$out"
mv "$new" "$out"
printf '%s\n' "$out"
