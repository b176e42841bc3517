//! Line -> event, for every spelling of a payload that is known.

use vmtax_events::event::{HypercallInterface, MmioAccess};
use vmtax_events::{Event, EventKind, Isa, NO_PID, NO_VCPU, Reason};

use super::{Import, exit, ftrace, import, perf, svm, switch, trace_cmd, vmx};

fn pio(write: bool, port: u16, size: u8, count: u32) -> EventKind {
    EventKind::Pio { write, size, port, count }
}

fn mmio(access: MmioAccess, len: u32, gpa: u64) -> EventKind {
    EventKind::Mmio { access, len, gpa }
}

fn userspace(reason: u32, errno: i32) -> EventKind {
    EventKind::UserspaceExit { reason, errno }
}

/// Each (event, payload) alone in a text, in all three formats.
#[track_caller]
fn check(cases: &[(&str, u32, EventKind)]) {
    for &(payload, vcpu, kind) in cases {
        let (event, payload) = payload.split_once(": ").expect("event: payload");
        let expected = Event { time_ns: 7_000_001_000, pid: NO_PID, tid: 12, cpu: 3, vcpu, kind };
        for (how, text) in [
            (
                ftrace as Import,
                format!("  CPU 0/KVM-12    [003] d..1.     7.000001: {event}: {payload}\n"),
            ),
            (perf, format!("  CPU 0/KVM    12 [003]     7.000001:      kvm:{event}: {payload}\n")),
            (trace_cmd, format!("  CPU 0/KVM-12    [003]     7.000001: {event}:      {payload}\n")),
        ] {
            let (kept, imported) = import(how, &text);
            assert_eq!(kept.events, [expected], "{text}");
            let own = (NO_PID, 12, "CPU 0/KVM".to_owned());
            assert_eq!(kept.names.first(), Some(&own), "{text}");
            // A switch names the thread that comes, too.
            let others = kept.names.iter().skip(1);
            assert!(
                others.clone().all(
                    |(_, tid, _)| matches!(kind, EventKind::Switch { next_tid, .. } if next_tid == *tid)
                ),
                "{text}"
            );
            assert!(imported.losses.is_empty(), "{text} {:?}", imported.losses);
        }
    }
}

#[test]
fn exits() {
    let failed = Reason { flags: vmx::FAILED_ENTRY, ..vmx(33) };
    check(&[
        // Linux 2.6.3x, 3.x to 5.10, 5.11 on.
        ("kvm_exit: reason EPT_VIOLATION rip 0xffffffff8103", NO_VCPU, exit(vmx(48), 0, 0)),
        ("kvm_exit: reason EPT_VIOLATION rip 0x1000 info 184 0", NO_VCPU, exit(vmx(48), 0x184, 0)),
        (
            "kvm_exit: vcpu 7 reason MSR_WRITE rip 0x1000 info1 0x0000000000000000 info2 \
             0x0000000080000b0e intr_info 0x00000000 error_code 0x00000000",
            7,
            exit(vmx(32), 0, 0x8000_0b0e),
        ),
        (
            "kvm_exit: vcpu 0 reason npf rip 0xfff0 info1 0x0000000100000014 info2 \
             0x00000000fffffff0 intr_info 0x00000000 error_code 0x00000000",
            0,
            exit(svm(0x400), 0x1_0000_0014, 0xffff_fff0),
        ),
        (
            "kvm_exit: vcpu 1 reason UD excp rip 0xffffffffa668b5d7 info1 0x1 info2 0x2 intr_info \
             0x00000000 error_code 0x00000000",
            1,
            exit(svm(0x46), 1, 2),
        ),
        (
            "kvm_exit: vcpu 0 reason INVALID_STATE FAILED_VMENTRY rip 0x0 info1 0x2 info2 0x0",
            0,
            exit(failed, 2, 0),
        ),
        (
            "kvm_exit: vcpu 0 reason EXTERNAL_INTERRUPT 0x8000000 rip 0x0 info1 0x0 info2 0x0",
            0,
            exit(Reason { flags: vmx::ENCLAVE_MODE, ..vmx(1) }, 0, 0),
        ),
        // The vector of an interrupt, before and since intr_info.
        (
            "kvm_exit: reason EXTERNAL_INTERRUPT rip 0x1 info 0 800000fd",
            NO_VCPU,
            exit(vmx(1), 0, 0x8000_00fd),
        ),
        (
            "kvm_exit: vcpu 0 reason EXTERNAL_INTERRUPT rip 0x0 info1 0x0 info2 0x0 intr_info 0x800000ec \
             error_code 0x0",
            0,
            exit(vmx(1), 0, 0x8000_00ec),
        ),
        (
            "kvm_exit: exit_reason=1 guest_rip=0xfff0 isa=1 info1=0x0 info2=0x0 intr_info=0x80000021 \
             error_code=0x0 vcpu_id=4",
            4,
            exit(vmx(1), 0, 0x8000_0021),
        ),
        // A reason that the kernel has no name for, and nothing that tells whose it is.
        (
            "kvm_exit: vcpu 0 reason 0x4d rip 0x0 info1 0x0 info2 0x0",
            0,
            exit(Reason { isa: Isa::Unknown, code: 0x4d, flags: 0 }, 0, 0),
        ),
        // trace-cmd's plugin, which may print the function too.
        (
            "kvm_exit: reason EXIT_IOIO rip 0xf5734 info 4020010 f5735",
            NO_VCPU,
            exit(svm(0x7b), 0x402_0010, 0xf5735),
        ),
        (
            "kvm_exit: reason EXIT_WRITE_CR8 rip 0x1 some_function+0x12 info 8 0",
            NO_VCPU,
            exit(svm(0x18), 8, 0),
        ),
        ("kvm_exit: reason EXIT_EXCP_UD rip 0x1 info 0 0", NO_VCPU, exit(svm(0x46), 0, 0)),
        ("kvm_exit: reason EXIT_ERR rip 0x1 info 0 0", NO_VCPU, exit(svm(u32::MAX), 0, 0)),
        ("kvm_exit: reason PENDING_INTERRUPT rip 0x1 info 0 0", NO_VCPU, exit(vmx(7), 0, 0)),
        (
            "kvm_exit: reason UNKNOWN (74) rip 0x1 info 0 0",
            NO_VCPU,
            exit(Reason { isa: Isa::Unknown, code: 74, flags: 0 }, 0, 0),
        ),
        // Fields.
        (
            "kvm_exit: exit_reason=2147483681 guest_rip=0xfff0 isa=1 info1=0x0000000100000014 \
             info2=0x00000000fffffff0 intr_info=0x00000000 error_code=0x00000000 vcpu_id=4",
            4,
            exit(failed, 0x1_0000_0014, 0xffff_fff0),
        ),
        (
            "kvm_exit: [FAILED TO PARSE] exit_reason=1024 guest_rip=0xfff0 isa=2 info1=20 info2=4096",
            NO_VCPU,
            exit(svm(0x400), 20, 4096),
        ),
        (
            "kvm_exit: exit_reason=-1 isa=2 info1=0x0 info2=0x0 vcpu_id=0",
            0,
            exit(svm(u32::MAX), 0, 0),
        ),
    ]);
}

#[test]
fn entries() {
    check(&[
        ("kvm_entry: vcpu 0", 0, EventKind::Entry),
        ("kvm_entry: vcpu 12, rip 0xfff0", 12, EventKind::Entry),
        ("kvm_entry: vcpu 1, rip 0xfff0[immediate exit]", 1, EventKind::Entry),
        (
            "kvm_entry: vcpu 1, rip 0x1 intr_info 0x00000000 error_code 0x00000000",
            1,
            EventKind::Entry,
        ),
        ("kvm_entry:  vcpu 3 rip 0xfff0", 3, EventKind::Entry),
        ("kvm_entry: vcpu_id=3 rip=0xfff0 immediate_exit=0", 3, EventKind::Entry),
    ]);
}

#[test]
fn accesses() {
    let msr = |write, index, data| EventKind::Msr { write, index, data };
    let cpuid = |function, index| EventKind::Cpuid { function, index };
    let cr = |write, number, value| EventKind::Cr { write, number, value };
    let apic = |write, register, value| EventKind::Apic { write, register, value };
    check(&[
        ("kvm_msr: msr_read 1d9 = 0x0", NO_VCPU, msr(false, 0x1d9, 0)),
        ("kvm_msr: msr_write 4b564d01 = 0xef761", NO_VCPU, msr(true, 0x4b56_4d01, 0xef761)),
        ("kvm_msr: msr_read c0010114 = 0x0 (#GP)", NO_VCPU, msr(false, 0xc001_0114, 0)),
        ("kvm_msr: write=1 ecx=830 data=0x8f exception=0", NO_VCPU, msr(true, 0x830, 0x8f)),
        ("kvm_msr: write=0 ecx=830 data=17 exception= 0", NO_VCPU, msr(false, 830, 17)),
        (
            "kvm_msr: [FAILED TO PARSE] write=0 ecx=16 data=0x5 exception=0",
            NO_VCPU,
            msr(false, 16, 5),
        ),
        ("kvm_pio: pio_write at 0x70 size 1 count 1", NO_VCPU, pio(true, 0x70, 1, 1)),
        ("kvm_pio: pio_write at 0x70 size 1 count 1 val 0x8f ", NO_VCPU, pio(true, 0x70, 1, 1)),
        (
            "kvm_pio: pio_read at 0xcfc size 4 count 9 val 0xffffffff (...)",
            NO_VCPU,
            pio(false, 0xcfc, 4, 9),
        ),
        ("kvm_pio: rw=1 port=0x402 size=1 count=1 val=0x20", NO_VCPU, pio(true, 0x402, 1, 1)),
        (
            "kvm_pio: [FAILED TO PARSE] rw=0 port=1026 size=2 count=1 val=32",
            NO_VCPU,
            pio(false, 0x402, 2, 1),
        ),
        (
            "kvm_mmio: mmio read len 4 gpa 0xfee000f0 val 0xff",
            NO_VCPU,
            mmio(MmioAccess::Read, 4, 0xfee0_00f0),
        ),
        (
            "kvm_mmio: mmio write len 8 gpa 0xfee00350 val 0x8700",
            NO_VCPU,
            mmio(MmioAccess::Write, 8, 0xfee0_0350),
        ),
        (
            "kvm_mmio: mmio unsatisfied-read len 2 gpa 0xfec00000 val 0x0",
            NO_VCPU,
            mmio(MmioAccess::UnsatisfiedRead, 2, 0xfec0_0000),
        ),
        (
            "kvm_mmio: type=2 len=4 gpa=0xfee00350 val=0x8700",
            NO_VCPU,
            mmio(MmioAccess::Write, 4, 0xfee0_0350),
        ),
        (
            "kvm_fast_mmio: fast mmio at gpa 0xfe003000",
            NO_VCPU,
            EventKind::FastMmio { gpa: 0xfe00_3000 },
        ),
        ("kvm_fast_mmio: gpa=0xfe003000", NO_VCPU, EventKind::FastMmio { gpa: 0xfe00_3000 }),
        ("kvm_cpuid: func 4 rax d rbx 68747541 rcx 444d4163 rdx 0", NO_VCPU, cpuid(4, 0)),
        (
            "kvm_cpuid: func 40000001 idx 2 rax 100fafb rbx 0 rcx 0 rdx 0, cpuid entry found",
            NO_VCPU,
            cpuid(0x4000_0001, 2),
        ),
        (
            "kvm_cpuid: function=40000000 index=2 rax=40000001 rbx=0 rcx=0 rdx=4d found=1",
            NO_VCPU,
            cpuid(0x4000_0000, 2),
        ),
        ("kvm_cpuid: function=13 index=1 rax=0xf rbx=0x0 rcx=0x0 rdx=0x0", NO_VCPU, cpuid(13, 1)),
        ("kvm_cr: cr_write 0 = 0x80050033", NO_VCPU, cr(true, 0, 0x8005_0033)),
        ("kvm_cr: cr_read 8 = 0x0", NO_VCPU, cr(false, 8, 0)),
        ("kvm_cr: rw=1 cr=4 val=0x6f0", NO_VCPU, cr(true, 4, 0x6f0)),
        ("kvm_apic: apic_write APIC_SPIV = 0x1ff", NO_VCPU, apic(true, 0xf0, 0x1ff)),
        ("kvm_apic: apic_read APIC_SELF_IPI = 0x0", NO_VCPU, apic(false, 0x3f0, 0)),
        ("kvm_apic: apic_write 0x2f0 = 0x10000", NO_VCPU, apic(true, 0x2f0, 0x10000)),
        ("kvm_apic: rw=1 reg=848 val=0x8700", NO_VCPU, apic(true, 0x350, 0x8700)),
    ]);
}

#[test]
fn hypercalls_and_confidential_guests() {
    let call = |interface, number| EventKind::Hypercall { interface, number };
    check(&[
        (
            "kvm_hypercall: nr 0xc a0 0x1000 a1 0x1 a2 0x0 a3 0x0",
            NO_VCPU,
            call(HypercallInterface::Kvm, 0xc),
        ),
        (
            "kvm_hypercall: nr=0x5 a0=0x0 a1=0x0 a2=0x0 a3=0x0",
            NO_VCPU,
            call(HypercallInterface::Kvm, 5),
        ),
        (
            "kvm_hv_hypercall: code 0x5c fast cnt 0x0 idx 0x0 in 0x0 out 0x0",
            NO_VCPU,
            call(HypercallInterface::HyperV, 0x5c),
        ),
        (
            "kvm_hv_hypercall: code 0x13 slow var_cnt 0x0 rep_cnt 0x1 idx 0x0 in 0x1000 out 0x0",
            NO_VCPU,
            call(HypercallInterface::HyperV, 0x13),
        ),
        ("kvm_xen_hypercall: nr 0x1d a0 0x0 a1 0x0", NO_VCPU, call(HypercallInterface::Xen, 0x1d)),
        (
            "kvm_xen_hypercall: cpl 0 nr 0x20 a0 0x0 a5 1",
            NO_VCPU,
            call(HypercallInterface::Xen, 0x20),
        ),
        (
            "kvm_page_fault: address 14 error_code 4",
            NO_VCPU,
            EventKind::PageFault { gpa: 0x14, error_code: 4 },
        ),
        (
            "kvm_page_fault: address fee000f0 error_code 181",
            NO_VCPU,
            EventKind::PageFault { gpa: 0xfee0_00f0, error_code: 0x181 },
        ),
        (
            "kvm_page_fault: vcpu 2 rip 0xe05b address 0x00000000000fa948 error_code 0x100000004",
            2,
            EventKind::PageFault { gpa: 0xfa948, error_code: 0x1_0000_0004 },
        ),
        (
            "kvm_page_fault: vcpu_id=2 guest_rip=0xe05b fault_address=0xfa948 error_code=0x14",
            2,
            EventKind::PageFault { gpa: 0xfa948, error_code: 0x14 },
        ),
        (
            "kvm_vmgexit_enter: vcpu 1, exit_reason 80000010, exit_info1 800, exit_info2 0",
            1,
            EventKind::GhcbEnter { code: 0x8000_0010, info1: 0x800, info2: 0 },
        ),
        (
            "kvm_vmgexit_enter: vcpu_id=1 exit_reason=80000010 info1=800 info2=0",
            1,
            EventKind::GhcbEnter { code: 0x8000_0010, info1: 0x800, info2: 0 },
        ),
        (
            "kvm_vmgexit_msr_protocol_enter: vcpu 0, ghcb_gpa 0000000000000002",
            0,
            EventKind::GhcbMsr { value: 2 },
        ),
        (
            "kvm_tdvmcall: rip: 12 reason: CPUID p1: 0 p2: 0",
            NO_VCPU,
            EventKind::Tdvmcall { leaf: 10 },
        ),
        (
            "kvm_tdvmcall: rip: 0 reason: MAP_GPA p1: 0",
            NO_VCPU,
            EventKind::Tdvmcall { leaf: 0x10001 },
        ),
        (
            "kvm_tdvmcall: rip=0x0 exit_reason=32 p1=0x6e0",
            NO_VCPU,
            EventKind::Tdvmcall { leaf: 32 },
        ),
        (
            "kvm_rmp_fault: vcpu 2 gpa 0000000100003000 pfn 0x1b2c03 error_code 0x580000007 rmp_level 2 psmash_ret 0",
            2,
            EventKind::PageFault { gpa: 0x1_0000_3000, error_code: 0x5_8000_0007 },
        ),
        (
            "vmcs_read: (handle_vmread+0x1a/0x20 [kvm_intel]) field=17410",
            NO_VCPU,
            EventKind::VmcsField { write: false, field: 0x4402 },
        ),
        (
            "vmcs_write: (ffffffffc0aa041a) field=26654",
            NO_VCPU,
            EventKind::VmcsField { write: true, field: 0x681e },
        ),
        (
            "kvm_tdvmcall: rip: 12 reason: 0x10001 p1: 0",
            NO_VCPU,
            EventKind::Tdvmcall { leaf: 0x10001 },
        ),
        ("kvm_userspace_exit: reason KVM_EXIT_IO (2)", NO_VCPU, userspace(2, 0)),
        ("kvm_userspace_exit: reason 0x28 (40)", NO_VCPU, userspace(40, 0)),
        ("kvm_userspace_exit: reason restart (4)", NO_VCPU, userspace(0, -4)),
        ("kvm_userspace_exit: reason error (14)", NO_VCPU, userspace(39, -14)),
        ("kvm_userspace_exit: reason error (22)", NO_VCPU, userspace(0, -22)),
        ("kvm_userspace_exit: reason=39 errno=-14", NO_VCPU, userspace(39, -14)),
        (
            "kvm_mmu_spte_requested: gfn 40000 pfn 1c400 level 2 access 7",
            NO_VCPU,
            EventKind::MapRequest { gfn: 0x40000, level: 2 },
        ),
        (
            "kvm_mmu_spte_requested: gfn=0x40000 pfn=0x1c400 level=1",
            NO_VCPU,
            EventKind::MapRequest { gfn: 0x40000, level: 1 },
        ),
        (
            "kvm_vm_set_mem_attributes: 0x00000000040000 -- 0x00000000040200 [0x8]",
            NO_VCPU,
            EventKind::SetAttributes { start: 0x40000, end: 0x40200, attributes: 8 },
        ),
        (
            "kvm_vm_set_mem_attributes: 00000000000000 -- 0x00000000000001 [0]",
            NO_VCPU,
            EventKind::SetAttributes { start: 0, end: 1, attributes: 0 },
        ),
        (
            "kvm_vm_set_mem_attributes: start=0x40000 end=0x40001 attr=0x0",
            NO_VCPU,
            EventKind::SetAttributes { start: 0x40000, end: 0x40001, attributes: 0 },
        ),
        ("kvm_userspace_exit: reason=10 errno=-4", NO_VCPU, userspace(10, -4)),
    ]);
}

/// perf script and trace-cmd report print them alike; `trace-cmd report -R`.
#[test]
fn requests_of_kvm() {
    let ioctl = |descriptor, request| EventKind::Ioctl { descriptor, request };
    let returns = |result| EventKind::IoctlReturn { result };
    check(&[
        (
            "sys_enter_ioctl: fd: 0x0000000b, cmd: 0x4040ae79, arg: 0x7ffd3c3bd5d0",
            NO_VCPU,
            ioctl(11, 0x4040_ae79),
        ),
        ("sys_enter_ioctl: fd=0xb cmd=0xae80 arg=0x0", NO_VCPU, ioctl(11, 0xae80)),
        ("sys_exit_ioctl: 0x4", NO_VCPU, returns(4)),
        ("sys_exit_ioctl: 0xffffffffffffffea", NO_VCPU, returns(-22)),
        (
            "sys_enter: NR 16 (b, 4040ae79, 7ffd3c3bd5d0, 0, 5596, 7f)",
            NO_VCPU,
            ioctl(11, 0x4040_ae79),
        ),
        ("sys_enter: NR 29 (b, ae80, 0, 0, 0, 0)", NO_VCPU, ioctl(11, 0xae80)),
        ("sys_exit: NR 16 = 4", NO_VCPU, returns(4)),
        ("sys_exit: NR 29 = -22", NO_VCPU, returns(-22)),
    ]);
}

/// Print formats of Linux 4.19 (`success=`) and 6.12, trace-cmd's plugin, and `trace-cmd report -R`; names of threads are hostile.
#[test]
fn threads_that_can_run() {
    let woken = |woken_tid| EventKind::Woken { woken_tid };
    check(&[
        (
            "sched_wakeup: comm=CPU 0/KVM pid=2046 prio=120 success=1 target_cpu=002",
            NO_VCPU,
            woken(2046),
        ),
        ("sched_waking: comm=x pid=7 prio= pid=2046 prio=120 target_cpu=002", NO_VCPU, woken(2046)),
        ("sched_wakeup: CPU 0/KVM:2046 [120] CPU:002", NO_VCPU, woken(2046)),
        ("sched_wakeup_new: a: [1]:9 [120] success=1 CPU:002", NO_VCPU, woken(9)),
        ("sched_wakeup: comm=CPU 0/KVM pid=2046 prio=120 target_cpu=2", NO_VCPU, woken(2046)),
    ]);
}

/// Print formats of Linux 3.10 (`vec=`), 6.1 and 6.12, and `trace-cmd report -R`.
#[test]
fn interrupts() {
    use vmtax_events::apicv::NAMED;
    use vmtax_events::event::InterruptAt as At;
    let raised = |at, number, source| EventKind::Interrupt { at, number, source };
    let inhibit = |set, reason, inhibits| EventKind::ApicvInhibit { reason, set, inhibits };
    check(&[
        ("kvm_set_irq: gsi 0 level 1 source 2", NO_VCPU, raised(At::Gsi, 0, 2)),
        ("kvm_set_irq: gsi=8 level=1 irq_source_id=0", NO_VCPU, raised(At::Gsi, 8, 0)),
        ("kvm_pic_set_irq: chip 1 pin 0 (edge) (coalesced)", NO_VCPU, raised(At::Pic, 8, 0)),
        ("kvm_pic_set_irq: chip=0 pin=4 elcr=0 imr=2 coalesced=0", NO_VCPU, raised(At::Pic, 4, 0)),
        (
            "kvm_ioapic_set_irq: pin 8 dst 1 vec=209 (Fixed|logical|edge)",
            NO_VCPU,
            raised(At::Ioapic, 8, 0),
        ),
        (
            "kvm_ioapic_set_irq: pin 10 dst 1 vec 65 (LowPrio|logical|level) (coalesced)",
            NO_VCPU,
            raised(At::Ioapic, 10, 0),
        ),
        ("kvm_msi_set_irq: dst 1 vec 65 (Fixed|logical|edge|rh)", NO_VCPU, raised(At::Msi, 65, 0)),
        ("kvm_msi_set_irq: address=0xfee01004 data=0x4041", NO_VCPU, raised(At::Msi, 0x41, 0)),
        ("kvm_apic_accept_irq: apicid 0 vec 236 (Fixed|edge)", NO_VCPU, raised(At::Apic, 236, 0)),
        ("kvm_apic_accept_irq: apicid=0 dm=0 tm=0 vec=236", NO_VCPU, raised(At::Apic, 236, 0)),
        ("kvm_ack_irq: irqchip IOAPIC pin 10", NO_VCPU, raised(At::Acknowledged, 10, 0)),
        ("kvm_ack_irq: irqchip PIC slave pin 0", NO_VCPU, raised(At::Acknowledged, 8, 0)),
        ("kvm_ack_irq: irqchip=1 pin=0", NO_VCPU, raised(At::Acknowledged, 8, 0)),
        ("kvm_apicv_inhibit_changed: set reason=2, inhibits=0x4", NO_VCPU, inhibit(true, 2, 4)),
        (
            "kvm_apicv_inhibit_changed: set reason=9, inhibits=0x202 HYPERV|PIT_REINJ",
            NO_VCPU,
            inhibit(true, 9 | NAMED, 0x202),
        ),
        (
            "kvm_apicv_inhibit_changed: cleared reason=2, inhibits=0x0",
            NO_VCPU,
            inhibit(false, 2, 0),
        ),
        ("kvm_apicv_inhibit_changed: reason=1 set=1 inhibits=0x2", NO_VCPU, inhibit(true, 1, 2)),
    ]);
    // A line that falls, a pin that is masked, a route without a vector, a message without one.
    for text in [
        "kvm_set_irq: gsi 0 level 0 source 2",
        "kvm_pic_set_irq: chip 0 pin 1 (edge|masked)",
        "kvm_ioapic_set_irq: pin 2 dst 0 vec=0 (Fixed|physical|edge|masked)",
        "kvm_msi_set_irq: dst 0 vec 0 (Fixed|physical|edge)",
        "kvm_apic_accept_irq: apicid 1 vec 240 (SIPI|edge)",
    ] {
        let (event, payload) = text.split_once(": ").unwrap();
        let (kept, imported) = import(
            perf,
            &format!("  vhost-12    12 [003]     7.000001:      kvm:{event}: {payload}\n"),
        );
        assert_eq!(kept.events, [], "{text}");
        assert!(imported.losses.is_empty(), "{text} {:?}", imported.losses);
    }
}

#[test]
fn nesting() {
    check(&[
        (
            "kvm_nested_vmexit: rip: 0x00000000000000b0 reason: EPT_VIOLATION ext_inf1: 0x184 \
             ext_inf2: 0x0 ext_int: 0x00000000 ext_int_err: 0x00000000",
            NO_VCPU,
            EventKind::NestedExit { reason: vmx(48) },
        ),
        (
            "kvm_nested_vmexit: vcpu 0 reason interrupt rip 0x0 info1 0x0000000000000000 info2 \
             0x0000000000000000 intr_info 0x00000000 error_code 0x00000000",
            0,
            EventKind::NestedExit { reason: svm(0x60) },
        ),
        // trace-cmd's plugin on an older kernel and on one whose fields it does not know.
        (
            "kvm_nested_vmexit:  rip fff0reason EXIT_NPF info1 100000014 info2 0 int_info 0",
            NO_VCPU,
            EventKind::NestedExit { reason: svm(0x400) },
        ),
        (
            "kvm_nested_vmexit: <CANT FIND FIELD rip>vcpu 0 reason npf rip 0x0 info1 0x0 info2 0x0",
            0,
            EventKind::NestedExit { reason: svm(0x400) },
        ),
        (
            "kvm_nested_vmexit: exit_reason=96 guest_rip=0x0 isa=2 info1=0x0 info2=0x0 vcpu_id=5",
            5,
            EventKind::NestedExit { reason: svm(0x60) },
        ),
        (
            "kvm_nested_vmexit_inject: reason: UD excp ext_inf1: 0x0000000000000000 ext_inf2: \
             0x0000000000000000 ext_int: 0x00000000 ext_int_err: 0x00000000",
            NO_VCPU,
            EventKind::NestedInject { reason: svm(0x46) },
        ),
        (
            "kvm_nested_vmexit_inject: reason EXIT_CPUID info1 0 info2 0 int_info 0 int_info_err 0",
            NO_VCPU,
            EventKind::NestedInject { reason: svm(0x72) },
        ),
        (
            "kvm_nested_vmexit_inject: exit_code=10 exit_info1=0x0 exit_info2=0x0 isa=1",
            NO_VCPU,
            EventKind::NestedInject { reason: vmx(10) },
        ),
        (
            "kvm_nested_vmenter: rip: 0xffffffffc038e20c vmcb: 0x0000000010a9f000 nested_rip: 0x0",
            NO_VCPU,
            EventKind::NestedEnter,
        ),
        (
            "kvm_nested_vmenter: rip=0xffffffffc03b820c vmcb=0x2d08000 isa=2",
            NO_VCPU,
            EventKind::NestedEnter,
        ),
        ("kvm_nested_vmrun: rip: 0x1 vmcb: 0x2 nrip: 0x3 npt: on", NO_VCPU, EventKind::NestedEnter),
    ]);
}

#[test]
fn halts_and_switches() {
    let wakeup = |ns, polled| EventKind::Wakeup { ns, polled };
    check(&[
        ("kvm_vcpu_wakeup: wait time 1569580 ns, polling valid", NO_VCPU, wakeup(1_569_580, false)),
        ("kvm_vcpu_wakeup: poll time 1000 ns, polling invalid", NO_VCPU, wakeup(1000, true)),
        ("kvm_vcpu_wakeup: ns=4336690 waited=1 valid=1", NO_VCPU, wakeup(4_336_690, false)),
        (
            "sched_switch: prev_comm=CPU 0/KVM prev_pid=12 prev_prio=120 prev_state=R+ ==> \
             next_comm=swapper/3 next_pid=0 next_prio=120",
            NO_VCPU,
            switch(0, true),
        ),
        (
            "sched_switch: prev_comm=x prev_pid=12 prev_prio=-100 prev_state=S ==> next_comm=a b \
             next_pid=77 next_prio=120",
            NO_VCPU,
            switch(77, false),
        ),
        // Names made to confuse.
        (
            "sched_switch: prev_comm=x prev_pid=1 y prev_pid=12 prev_prio=120 prev_state=D|K ==> \
             next_comm= prev_state=R next_pid=5 next_prio=120",
            NO_VCPU,
            switch(5, false),
        ),
        (
            "sched_switch: prev_comm= ==> next_pid=9 prev_pid=12 prev_prio=120 prev_state=R ==> \
             next_comm= next_pid=3 next_pid=6 next_prio=120",
            NO_VCPU,
            switch(6, true),
        ),
        (
            "sched_switch: prev_comm=x prev_pid=12 prev_prio=120 prev_state=256 next_comm=y next_pid=6",
            NO_VCPU,
            switch(6, true),
        ),
        (
            "sched_switch: prev_comm=x prev_pid=12 prev_prio=120 prev_state=0x1 next_comm=y next_pid=6",
            NO_VCPU,
            switch(6, false),
        ),
        // trace-cmd's plugin.
        ("sched_switch: CPU 0/KVM:12 [120] R ==> swapper/3:0 [120]", NO_VCPU, switch(0, true)),
        ("sched_switch: CPU 0/KVM:12 [120] S|D ==> a:b [x]:44 [-1]", NO_VCPU, switch(44, false)),
        ("sched_switch: x ==> y:12 [120] S ==> R ==> z:44 [120]", NO_VCPU, switch(44, false)),
    ]);
}

#[test]
fn lines_that_cannot_be_decoded_are_counted() {
    for payload in [
        "kvm_exit: reason NEW_REASON rip 0x1 info 0 0",
        "kvm_exit: reason ",
        "kvm_exit: vcpu x reason npf rip 0x1 info1 0x0 info2 0x0",
        "kvm_exit: vcpu 0 reason npf rip 0x1 info1 zz info2 0x0",
        "kvm_entry: ",
        "kvm_msr: msr_read 1d9",
        "kvm_msr: msr_read 1ffffffff = 0x0",
        "kvm_pio: pio_write at 0x10000 size 1 count 1",
        "kvm_mmio: mmio sideways len 4 gpa 0x1 val 0x0",
        "kvm_apic: apic_write APIC_NEW = 0x1",
        "kvm_userspace_exit: reason KVM_EXIT_IO",
        "kvm_vm_set_mem_attributes: 0x1 -- 0x2",
        "kvm_mmu_spte_requested: gfn 40000 pfn 1 level 300",
        "kvm_vcpu_wakeup: wait time 99999999999999999999 ns",
        // Fields that are there and cannot be read are none of the blanks of older kernels.
        "kvm_exit: exit_reason=1 isa=1 info1=zz info2=0x0",
        "kvm_exit: exit_reason=1 isa=vmx info1=0x0",
        "kvm_msr: write=1 ecx=0x1ffffffff data=0x0",
        "kvm_userspace_exit: reason=2 errno=?",
        "vmcs_read: (ffffffffc0aa041a) field=4294967296",
        "kvm_tdvmcall: rip: 0 reason: UNHEARD_OF p1: 0",
        "sched_switch: nonsense",
    ] {
        let line = format!(" qemu-12 [003] 7.000001: {payload}\n");
        let (kept, imported) = import(ftrace, &line);
        assert_eq!((kept.events.len(), imported.losses.undecodable), (0, 1), "{line}");
    }
    // A line that is cut before its payload is known for what it is by its event's name.
    let (_, imported) =
        import(ftrace, " qemu-12 [003] 7.000001: kvm_fpu: load\n[003] 7.0: kvm_exit: x\n");
    assert_eq!(imported.losses.undecodable, 1);
    // Unused tracepoints may have any fields.
    let (kept, imported) = import(ftrace, " qemu-12 [003] 7.000001: kvm_fpu: zzz\n");
    assert!(kept.events.is_empty() && imported.losses.is_empty());
}

#[test]
fn vendor_of_numbers() {
    let line = |ns: u32, reason: &str| {
        format!(" q-1 [000] 1.{ns:09}: kvm_exit: reason {reason} rip 0x1 info 0 0\n")
    };
    let text =
        [line(1, "0x4d"), line(2, "CPUID"), line(3, "0x4d"), line(4, "UNKNOWN (2147483681)")];
    let (kept, imported) = import(ftrace, &text.concat());
    let reasons: Vec<Reason> = kept
        .events
        .iter()
        .map(|e| match e.kind {
            EventKind::Exit { reason, .. } => reason,
            _ => panic!("{e:?}"),
        })
        .collect();
    let failed = Reason { flags: vmx::FAILED_ENTRY, ..vmx(33) };
    assert_eq!(reasons, [Reason { isa: Isa::Unknown, ..vmx(0x4d) }, vmx(10), vmx(0x4d), failed]);
    let notes = imported.losses.notes;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("VMX"), "{notes:?}");
    let (_, imported) = import(ftrace, &line(2, "CPUID"));
    assert!(imported.losses.notes.is_empty());
}

/// A thread that takes a CPU may have no line of its own: the switch has its name.
#[test]
fn threads_that_come_have_names() {
    for (payload, expected) in [
        (
            "prev_comm=CPU 0/KVM prev_pid=12 prev_prio=120 prev_state=R ==> next_comm=stress-ng next_pid=77 next_prio=120",
            Some((77, "stress-ng")),
        ),
        (
            "prev_comm=x prev_pid=12 prev_prio=120 prev_state=S ==> next_comm=a b next_pid=77 next_prio=120",
            Some((77, "a b")),
        ),
        ("CPU 0/KVM:12 [120] R ==> kworker/0:1:44 [120]", Some((44, "kworker/0:1"))),
        (
            "prev_comm=x prev_pid=12 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120",
            None,
        ),
        (
            "prev_comm=x prev_pid=12 prev_prio=120 prev_state=S ==> next_comm= next_pid=7 next_prio=120",
            None,
        ),
        (
            "prev_comm=x prev_pid=12 prev_prio=120 prev_state=S ==> next_comm=longer than any name can be next_pid=7 next_prio=120",
            None,
        ),
    ] {
        let text = format!("  CPU 0/KVM-12    [003] d..1.     7.000001: sched_switch: {payload}\n");
        let (kept, _) = import(ftrace, &text);
        let names: Vec<(u32, &str)> =
            kept.names.iter().skip(1).map(|(_, tid, name)| (*tid, name.as_str())).collect();
        assert_eq!(names, expected.into_iter().collect::<Vec<_>>(), "{payload}");
    }
}
