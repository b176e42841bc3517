# Sourced by a case on the emulated host: virtual machines that wait, start together, and are waited for.

# vm NAME VCPUS [OPTION ...]: makes a stopped VM with /case/NAME.bin as its firmware.
vm() {
  vm_name=$1; vm_vcpus=$2; shift 2
  mkfifo "/tmp/$vm_name.monitor" "/tmp/$vm_name.end"
  (
    "$@" qemu-system-x86_64 -accel kvm -M microvm,rtc=off,pit=off,pic=off,isa-serial=off -nodefaults -display none -S -monitor stdio \
      -name "guest=$vm_name,debug-threads=on" ${VM_CPU:+-cpu "$VM_CPU"} -smp "$vm_vcpus" -m 16M -bios "/case/$vm_name.bin" \
      -device isa-debug-exit,iobase=0xf4,iosize=1 -no-reboot <"/tmp/$vm_name.monitor" >"/tmp/$vm_name.out" 2>&1
    echo "$?" >"/tmp/$vm_name.status"
    echo end >"/tmp/$vm_name.end"
  ) &
  vm_names="$vm_names $vm_name"
}

# vm_ready: waits until each VM's monitor answers (its vCPU threads exist then), and prints their process ids.
vm_ready() {
  for vm_name in $vm_names; do
    mkfifo "/tmp/go.$vm_name"
    ( exec >"/tmp/$vm_name.monitor"; echo "info cpus"; read -r word </tmp/go.$vm_name; echo cont; sleep 600 ) &
    until grep -q 'thread_id=' "/tmp/$vm_name.out" 2>/dev/null; do sleep 0.1; done
    grep -o 'CPU #[0-9]*: thread_id=[0-9]*' "/tmp/$vm_name.out" | sed "s/^/vm $vm_name: /"
  done
  echo "$vm_names" >/tmp/vm_names
}

# vm_start, vm_wait, vm_go (also from another shell): lets the VMs run, returns when all have ended, does both.
vm_start() {
  for vm_name in $(cat /tmp/vm_names); do echo go >"/tmp/go.$vm_name" & done
}
vm_wait() {
  for vm_name in $(cat /tmp/vm_names); do
    # Opening a FIFO is interrupted when a child ends: try again.
    until read -r word <"/tmp/$vm_name.end"; do [ ! -e "/tmp/$vm_name.status" ] || break; done 2>/dev/null
  done
}
vm_go() {
  vm_start
  vm_wait
}
