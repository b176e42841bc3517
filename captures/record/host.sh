#!/bin/sh
# host.sh CASE-FOLDER OUTPUT-FOLDER: boots the emulated AMD host (QEMU TCG with SVM, two CPUs), which runs CASE-FOLDER/run;
# what that leaves in /out lands in OUTPUT-FOLDER. VMLINUZ and BASE (from image.sh) come from the environment,
# CPU and APPEND, if it needs them: features of its processor and words of its command line.
set -eu
case=$1; out=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/case" "$out"
cp -r "$case/." "$work/case/"
(cd "$work" && find case | busybox cpio -o -H newc -R 0:0 2>/dev/null) >"$work/case.cpio"
cat "$BASE" "$work/case.cpio" >"$work/initrd"
truncate -s 256M "$work/disk"
timeout "${LIMIT:-300}" qemu-system-x86_64 -accel tcg,thread=multi -cpu "max,+svm${CPU:-}" -smp "${CPUS:-2}" -m "${MEMORY:-2G}" -nodefaults -display none \
  -serial stdio -no-reboot -kernel "$VMLINUZ" -initrd "$work/initrd" -drive "file=$work/disk,format=raw,if=virtio" \
  -append 'console=ttyS0 quiet mitigations=off nokaslr panic=-1'" ${APPEND:-}" </dev/null
tar xf "$work/disk" -C "$out"
