//! The emulated hosts, and what differs between them.

use std::fmt;

use vmtax_events::Isa;
use vmtax_guest::layout;
use vmtax_machine::kernel::Architecture;
use vmtax_machine::{Emulator, MailboxDisk, QUICK_BOOT, QUICK_BOOT_ARM};

/// An emulated host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// QEMU TCG: SVM with nested paging.
    Amd,
    /// Bochs: SVM with nested paging and next-RIP save.
    AmdBochs,
    /// Bochs: VMX with EPT.
    Intel,
    /// QEMU TCG: an arm64 processor with EL2.
    Arm,
    /// QEMU with this computer's KVM: real times, no path lengths.
    Kvm,
}

impl HostKind {
    /// All of them.
    pub const ALL: [HostKind; 5] =
        [HostKind::Amd, HostKind::AmdBochs, HostKind::Intel, HostKind::Arm, HostKind::Kvm];

    /// `amd`, `amd-bochs`, `intel`, `arm` or `kvm`.
    pub fn name(self) -> &'static str {
        match self {
            HostKind::Amd => "amd",
            HostKind::AmdBochs => "amd-bochs",
            HostKind::Intel => "intel",
            HostKind::Arm => "arm",
            HostKind::Kvm => "kvm",
        }
    }

    /// Its emulator.
    pub fn emulator(self) -> Emulator {
        match self {
            HostKind::Amd => Emulator::Tcg { icount: true },
            HostKind::AmdBochs => Emulator::Bochs { svm: true },
            HostKind::Intel => Emulator::Bochs { svm: false },
            HostKind::Arm => Emulator::TcgArm,
            HostKind::Kvm => Emulator::Kvm,
        }
    }

    /// The architecture of its kernel.
    pub fn architecture(self) -> Architecture {
        match self {
            HostKind::Arm => Architecture::Arm64,
            HostKind::Amd | HostKind::AmdBochs | HostKind::Intel | HostKind::Kvm => {
                Architecture::Amd64
            }
        }
    }

    /// The architecture and the clock of its recordings, as they name them.
    pub fn recorded_as(self) -> (&'static str, &'static str) {
        match self.architecture() {
            Architecture::Amd64 => ("x86_64", "x86-tsc"),
            Architecture::Arm64 => ("aarch64", "mono_raw"),
        }
    }

    /// The instruction set of the virtualization that its KVM uses.
    pub fn isa(self) -> Isa {
        match self {
            HostKind::Amd | HostKind::AmdBochs => Isa::Svm,
            HostKind::Intel => Isa::Vmx,
            HostKind::Arm => Isa::Arm,
            // A processor with neither is refused by the launcher.
            HostKind::Kvm => {
                let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
                if vmtax_events::setting::cpuinfo::has_flag(&info, "svm") {
                    Isa::Svm
                } else {
                    Isa::Vmx
                }
            }
        }
    }

    /// The command line of its kernel, up to what is vmtax's.
    pub(crate) fn command_line(self) -> String {
        match self.architecture() {
            Architecture::Amd64 => format!("console=ttyS0,115200 {QUICK_BOOT}"),
            Architecture::Arm64 => {
                format!("console=ttyAMA0 {QUICK_BOOT_ARM} vmtax.mailbox=virtio")
            }
        }
    }

    /// Where its program finds the mailbox.
    pub(crate) fn mailbox(self) -> MailboxDisk {
        match self.architecture() {
            Architecture::Amd64 => MailboxDisk::Ide,
            Architecture::Arm64 => MailboxDisk::Virtio(String::new()),
        }
    }

    /// The command line of L1 under the small VMM, which has neither PCI nor ACPI, and on arm64 no driver for its serial port either.
    pub(crate) fn inner_command_line(self, role: &str) -> String {
        let line = match self.architecture() {
            Architecture::Amd64 => self.vm_command_line("pci=off acpi=off"),
            Architecture::Arm64 => format!(
                "earlycon=pl011,mmio32,{:#x} keep_bootcon {QUICK_BOOT_ARM} panic=-1",
                layout::arm::SERIAL
            ),
        };
        format!("{line} {role}")
    }

    /// The command line of a VM, with as few exits as possible during boot.
    pub(crate) fn vm_command_line(self, words: &str) -> String {
        let mut line = format!(
            "console=ttyS0,115200 {QUICK_BOOT} panic=-1 {words} tsc=reliable random.trust_cpu=on \
             initcall_blacklist=i8042_init,cubictcp_register"
        );
        if !self.guest_has_xsave() {
            line.push_str(" noxsave");
        }
        line
    }

    /// Whether L1 has XSAVE. QEMU's TCG does not know the XSETBV intercept, so KVM would restore an XCR0 that L1 has long changed.
    pub(crate) fn guest_has_xsave(self) -> bool {
        self != HostKind::Amd
    }

    /// Whether steps of a VM's life can be measured: its clock counts instructions at 1 GHz, by which the kernel's idle time is one of them.
    pub(crate) fn counts_steps(self) -> bool {
        matches!(self, HostKind::Amd | HostKind::Intel | HostKind::Arm)
    }

    /// The kernel modules for it and for the mailbox. KVM of arm64 is no module.
    pub(crate) fn modules(self) -> &'static [&'static str] {
        match self.isa() {
            Isa::Svm => &["kvm_amd"],
            Isa::Arm => &["virtio_mmio", "virtio_blk"],
            Isa::Vmx | Isa::Unknown => &["kvm_intel"],
        }
    }

    /// KVM's kernel module on x86.
    pub(crate) fn module(self) -> &'static str {
        if self.isa() == Isa::Svm { "kvm_amd" } else { "kvm_intel" }
    }

    /// What a run on it can be asked for beside operations at L1 and their recording.
    pub fn can(self, what: Ability) -> bool {
        match self {
            HostKind::Amd | HostKind::AmdBochs | HostKind::Intel => what != Ability::Protect,
            HostKind::Kvm => !matches!(what, Ability::Profile | Ability::Protect),
            HostKind::Arm => !matches!(what, Ability::Own | Ability::Program),
        }
    }
}

/// What not every host can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    /// Operations at L2.
    Nest,
    /// Call trees.
    Profile,
    /// A program beside the suite.
    Observe,
    /// Code of the user's.
    Own,
    /// A program as a guest.
    Program,
    /// Operations in protected VMs.
    Protect,
}

impl fmt::Display for HostKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
