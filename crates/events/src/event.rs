//! One thing that happened on the host, in the form every importer produces.

use serde::{Deserialize, Serialize};

use crate::Reason;

/// The process is not known: ftrace records carry a thread only.
pub const NO_PID: u32 = 0;
/// The thread of a processor that has nothing to run (Linux kernel/sched/idle.c): the idle tasks of all processors have this number.
pub const IDLE_TASK: u32 = 0;
/// The event does not say which vCPU it belongs to; its thread does.
pub const NO_VCPU: u32 = u32::MAX;

/// An event of one host thread on one host CPU.
///
/// Events that reach the analysis are in time order ([`Event::time_ns`], ties as recorded).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time on the recorder's clock, nanoseconds.
    pub time_ns: u64,
    /// Host process (thread group) or [`NO_PID`].
    pub pid: u32,
    pub tid: u32,
    /// Host CPU it was recorded on.
    pub cpu: u32,
    /// KVM's vCPU id where the event carries one, or [`NO_VCPU`].
    pub vcpu: u32,
    pub kind: EventKind,
}

/// The events of the analysis, by their tracepoints.
///
/// Anything else that a recording holds is skipped by the importers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// `kvm_exit`. `info1` is the VMX exit qualification or SVM `exit_info_1`, `info2` SVM `exit_info_2`, the VMX
    /// IDT-vectoring information or, of EXTERNAL_INTERRUPT, the VM-exit interruption information.
    Exit {
        /// Vendor, reason and flags.
        reason: Reason,
        /// First information word.
        info1: u64,
        /// Second information word.
        info2: u64,
    },
    /// `kvm_entry`.
    Entry,
    /// `kvm_msr`.
    Msr {
        /// A write, not a read.
        write: bool,
        /// MSR number (ECX).
        index: u32,
        /// Value read or written.
        data: u64,
    },
    /// `kvm_pio`.
    Pio {
        /// OUT, not IN.
        write: bool,
        /// Bytes per element.
        size: u8,
        port: u16,
        /// Elements (string I/O has more than one).
        count: u32,
    },
    /// `kvm_mmio`.
    Mmio {
        /// Read, write, or a read whose data user space must still give.
        access: MmioAccess,
        /// Bytes.
        len: u32,
        /// Guest-physical address.
        gpa: u64,
    },
    /// `kvm_fast_mmio`: an ioeventfd hit without decoding the instruction.
    FastMmio {
        /// Guest-physical address.
        gpa: u64,
    },
    /// `kvm_hypercall`, `kvm_hv_hypercall`, `kvm_xen_hypercall` or `kvm_hvc_arm64`.
    Hypercall {
        /// Which interface's number space.
        interface: HypercallInterface,
        number: u64,
    },
    /// `kvm_handle_sys_reg` or `kvm_sys_access`: a system register of arm64, or a system instruction.
    Sysreg {
        /// A write, not a read.
        write: bool,
        /// See [`registers::id`](crate::arm::registers::id).
        register: u32,
    },
    /// `kvm_wfx_arm64`: the guest waits.
    Wait {
        /// WFE, not WFI.
        for_event: bool,
    },
    /// An event that says no more than which vCPU its thread runs (`kvm_get_timer_map`).
    Runs,
    /// `kvm_page_fault` or `kvm_guest_fault`: a fault in the second-level page table.
    PageFault {
        /// Guest-physical address (guest-linear with shadow paging).
        gpa: u64,
        error_code: u64,
    },
    /// `kvm_mmu_spte_requested`: a page fault, or a request to pre-fault, maps a guest page at this level.
    MapRequest {
        gfn: u64,
        /// 1: 4 KiB, 2: 2 MiB, 3: 1 GiB.
        level: u8,
    },
    /// `kvm_vm_set_mem_attributes`: guest memory was made private or shared.
    SetAttributes {
        /// First guest frame number.
        start: u64,
        /// The one after the last.
        end: u64,
        /// `KVM_MEMORY_ATTRIBUTE_*`.
        attributes: u64,
    },
    /// `kvm_cpuid`.
    Cpuid {
        /// EAX: leaf.
        function: u32,
        /// ECX: sub-leaf.
        index: u32,
    },
    /// `kvm_cr`.
    Cr {
        /// A write, not a read.
        write: bool,
        number: u8,
        value: u64,
    },
    /// `kvm_apic`.
    Apic {
        /// A write, not a read.
        write: bool,
        /// Register offset in the xAPIC page (0x300 is ICR).
        register: u32,
        value: u64,
    },
    /// `kvm_vmgexit_enter`: an SEV-ES/SNP guest's request through the GHCB.
    GhcbEnter {
        /// GHCB exit code: an SVM code or 0x8000_00xx.
        code: u64,
        /// `SW_EXITINFO1`.
        info1: u64,
        /// `SW_EXITINFO2`.
        info2: u64,
    },
    /// `kvm_vmgexit_msr_protocol_enter`: a request through the GHCB MSR.
    GhcbMsr {
        /// The MSR's value; the low 12 bits are the request.
        value: u64,
    },
    /// A TDVMCALL leaf seen in older Intel kernels' own tracepoints.
    Tdvmcall {
        /// Leaf (R11).
        leaf: u64,
    },
    /// The VMCS field of a VMREAD or VMWRITE that KVM carries out for a guest hypervisor. No tracepoint says it:
    /// it comes from a probe that `vmtax lab` puts into the emulated host's KVM.
    VmcsField {
        /// VMWRITE, not VMREAD.
        write: bool,
        field: u32,
    },
    /// What `kvm_exit` could not say yet: of VMX the exit qualification, which KVM reads while it handles the exit. The
    /// words take the place of those that the open exit has.
    Information {
        /// First information word.
        info1: u64,
        /// Second information word.
        info2: u64,
    },
    /// `kvm_userspace_exit`.
    UserspaceExit {
        /// `KVM_EXIT_*`.
        reason: u32,
        /// Negative errno or 0.
        errno: i32,
    },
    /// `kvm_nested_vmexit`: the `kvm_exit` just before came from L2.
    NestedExit {
        /// The reason again.
        reason: Reason,
    },
    /// `kvm_nested_vmexit_inject` or `kvm_inject_nested_exception`: the exit was forwarded to L1.
    NestedInject {
        /// The reason that L1 sees.
        reason: Reason,
    },
    /// `kvm_nested_vmenter` (older: `kvm_nested_vmrun`) or `kvm_nested_eret`: L1 resumed L2.
    NestedEnter,
    /// `kvm_vcpu_wakeup`: a halted vCPU runs again.
    Wakeup {
        /// Time halted, polling included.
        ns: u64,
        /// Woken while polling, without giving up the CPU.
        polled: bool,
    },
    /// An interrupt on its way to the guest. The event's thread is the one that raises it.
    Interrupt {
        /// How far it is.
        at: InterruptAt,
        /// GSI, pin or vector.
        number: u32,
        /// Of a GSI: KVM's number of the source, 0 for user space.
        source: u32,
    },
    /// `kvm_apicv_inhibit_changed`.
    ApicvInhibit {
        /// KVM's number of the reason, with [`crate::apicv::NAMED`] where a text names it.
        reason: u32,
        /// It inhibits from now on; else no longer.
        set: bool,
        /// All reasons that do from now on, a bit for each.
        inhibits: u64,
    },
    /// `sched_switch`; the event's thread is the one that leaves the CPU.
    Switch {
        /// Thread that gets the CPU.
        next_tid: u32,
        /// The leaving thread could have run on: it was preempted.
        preempted: bool,
    },
    /// `sched_wakeup`, `sched_wakeup_new` or `sched_waking`: a thread that slept can run from now on. The event's thread is the one that wakes it.
    Woken {
        /// Thread that can run.
        woken_tid: u32,
    },
    /// `sys_enter_ioctl`, or `sys_enter` of that call: a request of KVM's type begins.
    Ioctl { descriptor: u32, request: u32 },
    /// `sys_exit_ioctl`, or `sys_exit` of that call: any request returns.
    IoctlReturn {
        /// A negative errno, or what the request returns.
        result: i32,
    },
    /// The recorder lost events of this CPU just before this point; `tid` is not meaningful.
    Lost {
        /// How many, 0 when the recorder does not say.
        count: u64,
    },
    /// The thread ended (its id may be used again).
    ThreadEnd,
    /// The thread's next event was sampled: it stands for this many, of which the others are in no recording.
    Sampled {
        /// How many, itself among them.
        count: u64,
    },
}

/// The direction of `kvm_mmio` (its `type` field).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MmioAccess {
    /// Type 0: a read that user space has to complete; a [`MmioAccess::Read`] follows.
    UnsatisfiedRead,
    /// Type 1.
    Read,
    /// Type 2.
    Write,
}

/// Places that an interrupt passes, each with a tracepoint and numbers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum InterruptAt {
    /// `kvm_set_irq`: KVM's line, a GSI.
    Gsi,
    /// `kvm_pic_set_irq`: a pin of the 8259s, of the second one from 8 on.
    Pic,
    /// `kvm_ioapic_set_irq`: a pin.
    Ioapic,
    /// `kvm_msi_set_irq`: the message's vector.
    Msi,
    /// `kvm_apic_accept_irq`: the vector that a vCPU's APIC takes.
    Apic,
    /// `kvm_ack_irq`: the pin that the guest acknowledges.
    Acknowledged,
}

/// Whose hypercall numbers these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HypercallInterface {
    /// KVM's own.
    Kvm,
    /// Hyper-V enlightenments.
    HyperV,
    /// Xen emulation.
    Xen,
    /// Arm's SMC calling convention: PSCI and others. The number is that of [`DetailKind::Smccc`](crate::DetailKind::Smccc).
    Smccc,
}

/// Declares [`Coverage`]: each field once, with the tracepoint that it is about.
macro_rules! coverage {
    ($($(#[$doc:meta])* $field:ident: $tracepoint:literal $(or $other:literal)*;)+) => {
        /// Which kinds of event a recording could have held: what its absence means.
        ///
        /// Binary recordings list their tracepoints; text only has those that occurred.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Coverage {
            $(
                #[doc = concat!("`", $tracepoint, "`" $(, " or `", $other, "`")*, ".")]
                $(#[$doc])* pub $field: bool,
            )+
        }

        impl Coverage {
            /// Every kind could have been held.
            pub const ALL: Coverage = Coverage { $($field: true,)+ };

            /// Adds what another part of the same recording could have held.
            pub fn join(&mut self, other: Coverage) {
                $(self.$field |= other.$field;)+
            }

            /// Notes that a tracepoint of this name (without its system) was recorded or seen.
            pub fn add(&mut self, tracepoint: &str) {
                match tracepoint {
                    $($tracepoint $(| $other)* => self.$field = true,)+
                    _ => {}
                }
            }

            /// A tracepoint of this name was recorded in a way that tells nothing.
            pub fn remove(&mut self, tracepoint: &str) {
                match tracepoint {
                    $($tracepoint $(| $other)* => self.$field = false,)+
                    _ => {}
                }
            }
        }
    };
}

coverage! {
    /// `kvm_entry` comes with it.
    exits: "kvm_exit";
    /// Without it L1 and L2 cannot be distinguished.
    nested: "kvm_nested_vmexit" or "kvm_nested_eret";
    /// Without it time in user space counts as kernel time.
    userspace: "kvm_userspace_exit";
    /// Without it preemption is not seen.
    sched: "sched_switch";
    /// Without it the complete duration of a HLT exit counts as halted.
    wakeup: "kvm_vcpu_wakeup";
    msr: "kvm_msr" or "kvm_handle_sys_reg" or "kvm_sys_access";
    pio: "kvm_pio";
    mmio: "kvm_mmio";
    cpuid: "kvm_cpuid";
    hypercall: "kvm_hypercall" or "kvm_hvc_arm64";
    page_fault: "kvm_page_fault" or "kvm_guest_fault";
}
