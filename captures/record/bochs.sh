#!/bin/sh
# bochs.sh CASE-FOLDER OUTPUT-FOLDER: as host.sh, for the emulated Intel host (Bochs with VMX and EPT, one CPU).
# BASE must hold kvm-intel and the disk's modules: see record.sh. Console output goes to OUTPUT-FOLDER/console.txt.
set -eu
case=$1; out=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/case" "$work/iso/isolinux" "$out"
cp -r "$case/." "$work/case/"
(cd "$work" && find case | busybox cpio -o -H newc -R 0:0 2>/dev/null) >"$work/case.cpio"
cat "$BASE" "$work/case.cpio" >"$work/iso/initrd"
cp "$VMLINUZ" "$work/iso/vmlinuz"
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$work/iso/isolinux/"
cat >"$work/iso/isolinux/isolinux.cfg" <<END
default linux
prompt 0
label linux
  kernel /vmlinuz
  append initrd=/initrd console=ttyS0 quiet mitigations=off nokaslr panic=-1 lpj=1000000 ${APPEND:-}
END
xorriso -as mkisofs -quiet -o "$work/host.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table "$work/iso"
cylinders=130
truncate -s $((cylinders * 16 * 63 * 512)) "$work/disk"
cat >"$work/bochsrc" <<END
display_library: term
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/vgabios/vgabios.stdvga.bin
cpu: model=${MODEL:-broadwell_ult}, count=1, ips=100000000
megs: ${MEGS:-512}
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata1: enabled=1, ioaddr1=0x170, ioaddr2=0x370, irq=15
ata0-master: type=disk, path="$work/disk", mode=flat, cylinders=$cylinders, heads=16, spt=63
ata1-master: type=cdrom, path="$work/host.iso", status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev="$out/console.txt"
sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy
clock: sync=none
log: $work/bochs.log
panic: action=fatal
error: action=ignore
info: action=ignore
END
echo c >"$work/commands"
TERM=xterm timeout "${LIMIT:-600}" script -qec "bochs -q -f $work/bochsrc -rc $work/commands" /dev/null >"$work/screen" 2>&1 </dev/null || true
grep -aE 'PANIC|ERROR' "$work/bochs.log" | tail -n 5 || true
cat "$out/console.txt"
tar xf "$work/disk" -C "$out"
