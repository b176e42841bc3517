#!/bin/sh
# payload.sh OUTPUT SOURCE [-DNAME=VALUE ...]: assembles payload.S, nested-svm.S or nested-vmx.S to a 64 KiB firmware image.
set -eu
here=$(dirname "$0")
out=$1; source=$2; shift 2
gcc -m32 -c "$@" -o "$out.o" "$here/$source"
ld -m elf_i386 -Ttext=0xf0000 -e start -o "$out.elf" "$out.o"
objcopy -O binary -j .text "$out.elf" "$out"
rm -f "$out.o" "$out.elf"
[ "$(wc -c <"$out")" = 65536 ]
