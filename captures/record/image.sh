#!/bin/sh
# image.sh LINUX OUTPUT PROGRAM...: the emulated host's initramfs (cpio, not compressed).
# LINUX is an unpacked linux-image package. Holds busybox, the modules named in MODULES, each PROGRAM with its libraries, and the folder EXTRA.
set -eu
here=$(dirname "$0")
linux=$1; out=$2; shift 2
MODULES=${MODULES:-irqbypass ccp kvm kvm-amd virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/bin" "$root/modules" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/root" "$root/etc" "$root/out" "$root/case"
busybox=$(command -v busybox)
cp "$busybox" "$root/bin/busybox"
ln -s busybox "$root/bin/sh"
number=10
for module in $MODULES; do
  cp "$(find "$linux/lib/modules" -name "$module.ko" | head -n 1)" "$root/modules/$number-$module.ko"
  number=$((number + 1))
done
for program; do
  file=$(readlink -f "$(command -v "$program")")
  mkdir -p "$root/usr/bin"
  cp "$file" "$root/usr/bin/$(basename "$program")"
  { ldd "$file" || true; } | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^[[:space:]]*\(\/lib64[^ ]*\).*/\1/p' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    [ -e "$root$library" ] || cp -L "$library" "$root$library"
  done
done
cp "$here/init" "$root/init"
[ -z "${EXTRA:-}" ] || cp -rL "$EXTRA/." "$root/"
chmod 755 "$root/init"
(cd "$root" && find . | LC_ALL=C sort | busybox cpio -o -H newc -R 0:0 2>/dev/null) >"$out"
