#!/bin/sh
# oracle.sh FOLDER NAME.perf.data ...: writes beside each recording what perf itself makes of it. Runs on any machine with the same perf.
#   NAME.script.txt       perf script
#   NAME.exits.txt        kvm_exit events counted from that: count, process/thread, vCPU, reason
#   NAME.kvmstat-E.txt    perf kvm stat report --event=E, for vmexit, ioport, mmio and msr (not for a pipe: perf reads none)
# and, when more than one process has exits,
#   NAME.kvmstat-vmexit-pN.txt, -vcpuN.txt      the same with -p N and with --vcpu N
set -eu
export LC_ALL=C TZ=UTC
cd "$1"; shift
for file; do
  name=${file%.perf.data}
  if [ "$(od -An -tu8 -j8 -N8 "$file" | tr -d ' ')" = 16 ]; then input=-; else input=$file; fi
  perf script -i $input <"$file" 2>/dev/null >"$name.script.txt"
  perf script -i $input -F comm,pid,tid,cpu,time,event,trace <"$file" 2>/dev/null |
    sed -nE 's/^.* ([0-9]+\/[0-9]+) .* kvm:kvm_exit: vcpu ([0-9]+) reason ([A-Za-z_0-9]+) .*/\1 vcpu \2 \3/p' | sort | uniq -c | sort -k2,2 -k1,1nr >"$name.exits.txt"
  [ "$input" != - ] || continue
  report() {
    perf kvm -i "$file" stat report "$@" 2>&1 | grep -v -e '^libtraceevent' -e 'bad op token' -e 'expected type 5' || true
  }
  for event in vmexit ioport mmio msr; do report --event=$event >"$name.kvmstat-$event.txt"; done
  processes=$(sed -n 's/^ *[0-9]* \([0-9]*\)\/.*/\1/p' "$name.exits.txt" | sort -u)
  [ "$(echo "$processes" | wc -l)" -gt 1 ] || continue
  for process in $processes; do report --event=vmexit -p "$process" >"$name.kvmstat-vmexit-p$process.txt"; done
  for vcpu in $(sed -n 's/.* vcpu \([0-9]*\) .*/\1/p' "$name.exits.txt" | sort -u); do report --event=vmexit --vcpu "$vcpu" >"$name.kvmstat-vmexit-vcpu$vcpu.txt"; done
done
