//! Calls by which a VMM creates, starts and destroys VMs: requests of KVM's files, and the release of these.

use crate::words::words;

words! {
    /// The file of a call.
    pub enum KvmFile {
        /// /dev/kvm.
        Device = "device",
        /// A VM's.
        Vm = "vm",
        Vcpu = "vcpu",
    }
}

/// A call. KVM_RUN only the first of a vCPU; no injection of interrupts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvmCall {
    pub began_ns: u64,
    pub ns: u64,
    /// Of it, the time that the thread was on no CPU, ns.
    pub off_cpu_ns: u64,
    /// The longest part of that, ns.
    pub longest_ns: u64,
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    /// Number of the cgroup.
    pub cgroup: u64,
    pub file: KvmFile,
    /// The kernel's address of the VM; 0 of the device.
    pub vm: u64,
    /// The request; 0: the file is released.
    pub request: u32,
    /// A slot is deleted, an ioeventfd or irqfd is removed.
    pub undoes: bool,
    pub result: i32,
    /// Where the thread left its CPU for the longest time: addresses in the kernel, the innermost first.
    pub stack: Vec<u64>,
}

/// Numbers of requests, their lowest byte, by Linux `include/uapi/linux/kvm.h` and `arch/x86/include/uapi/asm/kvm.h`.
const REQUESTS: &[(KvmFile, u32, &str)] = {
    use KvmFile::{Device, Vcpu, Vm};
    &[
        (Device, 0x00, "KVM_GET_API_VERSION"),
        (Device, CREATE_VM, "KVM_CREATE_VM"),
        (Device, 0x02, "KVM_GET_MSR_INDEX_LIST"),
        (Device, 0x03, "KVM_CHECK_EXTENSION"),
        (Device, 0x04, "KVM_GET_VCPU_MMAP_SIZE"),
        (Device, 0x05, "KVM_GET_SUPPORTED_CPUID"),
        (Device, 0x09, "KVM_GET_EMULATED_CPUID"),
        (Device, 0x0a, "KVM_GET_MSR_FEATURE_INDEX_LIST"),
        (Device, 0x88, "KVM_GET_MSRS"),
        (Vm, 0x03, "KVM_CHECK_EXTENSION"),
        (Vm, CREATE_VCPU, "KVM_CREATE_VCPU"),
        (Vm, 0x42, "KVM_GET_DIRTY_LOG"),
        (Vm, 0x44, "KVM_SET_NR_MMU_PAGES"),
        (Vm, 0x46, "KVM_SET_USER_MEMORY_REGION"),
        (Vm, 0x47, "KVM_SET_TSS_ADDR"),
        (Vm, 0x48, "KVM_SET_IDENTITY_MAP_ADDR"),
        (Vm, 0x49, "KVM_SET_USER_MEMORY_REGION2"),
        (Vm, 0x60, "KVM_CREATE_IRQCHIP"),
        (Vm, 0x62, "KVM_GET_IRQCHIP"),
        (Vm, 0x63, "KVM_SET_IRQCHIP"),
        (Vm, 0x67, "KVM_REGISTER_COALESCED_MMIO"),
        (Vm, 0x68, "KVM_UNREGISTER_COALESCED_MMIO"),
        (Vm, 0x6a, "KVM_SET_GSI_ROUTING"),
        (Vm, 0x76, "KVM_IRQFD"),
        (Vm, 0x77, "KVM_CREATE_PIT2"),
        (Vm, 0x78, "KVM_SET_BOOT_CPU_ID"),
        (Vm, 0x79, "KVM_IOEVENTFD"),
        (Vm, 0x7b, "KVM_SET_CLOCK"),
        (Vm, 0x7c, "KVM_GET_CLOCK"),
        (Vm, 0xa3, "KVM_ENABLE_CAP"),
        (Vm, 0xb2, "KVM_SET_PMU_EVENT_FILTER"),
        (Vm, 0xba, "KVM_MEMORY_ENCRYPT_OP"),
        (Vm, 0xc6, "KVM_X86_SET_MSR_FILTER"),
        (Vm, 0xd2, "KVM_SET_MEMORY_ATTRIBUTES"),
        (Vm, 0xd4, "KVM_CREATE_GUEST_MEMFD"),
        (Vm, 0xe0, "KVM_CREATE_DEVICE"),
        (Vcpu, RUN, "KVM_RUN"),
        (Vcpu, 0x81, "KVM_GET_REGS"),
        (Vcpu, 0x82, "KVM_SET_REGS"),
        (Vcpu, 0x83, "KVM_GET_SREGS"),
        (Vcpu, 0x84, "KVM_SET_SREGS"),
        (Vcpu, 0x88, "KVM_GET_MSRS"),
        (Vcpu, 0x89, "KVM_SET_MSRS"),
        (Vcpu, 0x8b, "KVM_SET_SIGNAL_MASK"),
        (Vcpu, 0x8c, "KVM_GET_FPU"),
        (Vcpu, 0x8d, "KVM_SET_FPU"),
        (Vcpu, 0x8e, "KVM_GET_LAPIC"),
        (Vcpu, 0x8f, "KVM_SET_LAPIC"),
        (Vcpu, 0x90, "KVM_SET_CPUID2"),
        (Vcpu, 0x98, "KVM_GET_MP_STATE"),
        (Vcpu, 0x99, "KVM_SET_MP_STATE"),
        (Vcpu, 0x9c, "KVM_X86_SETUP_MCE"),
        (Vcpu, 0x9f, "KVM_GET_VCPU_EVENTS"),
        (Vcpu, 0xa0, "KVM_SET_VCPU_EVENTS"),
        (Vcpu, 0xa1, "KVM_GET_DEBUGREGS"),
        (Vcpu, 0xa2, "KVM_SET_DEBUGREGS"),
        (Vcpu, 0xa3, "KVM_ENABLE_CAP"),
        (Vcpu, 0xa4, "KVM_GET_XSAVE"),
        (Vcpu, 0xa5, "KVM_SET_XSAVE"),
        (Vcpu, 0xa6, "KVM_GET_XCRS"),
        (Vcpu, 0xa7, "KVM_SET_XCRS"),
        (Vcpu, 0xd5, "KVM_PRE_FAULT_MEMORY"),
    ]
};
/// Whole requests whose number is taken twice.
const WHOLE: [(u32, &str); 2] = [(0xaea2, "KVM_SET_TSC_KHZ"), (0xaea3, "KVM_GET_TSC_KHZ")];
const CREATE_VM: u32 = 0x01;
const CREATE_VCPU: u32 = 0x41;
const RUN: u32 = 0x80;

impl KvmFile {
    /// The file that takes a request, if there is only one and it is known.
    pub fn of_request(request: u32) -> Option<KvmFile> {
        let mut files = REQUESTS.iter().filter(|one| one.1 == request & 0xff).map(|one| one.0);
        files.next().filter(|_| files.next().is_none())
    }
}

impl KvmCall {
    /// A VM is there now.
    pub fn creates_vm(&self) -> bool {
        self.is(KvmFile::Device, CREATE_VM) && self.result >= 0
    }

    /// A vCPU is there now.
    pub fn creates_vcpu(&self) -> bool {
        self.is(KvmFile::Vm, CREATE_VCPU) && self.result >= 0
    }

    /// KVM_RUN.
    pub fn runs(&self) -> bool {
        self.is(KvmFile::Vcpu, RUN)
    }

    /// The last descriptor of the file was closed.
    pub fn releases(&self) -> bool {
        self.request == 0
    }

    fn is(&self, file: KvmFile, number: u32) -> bool {
        self.file == file && !self.releases() && self.request & 0xff == number
    }

    /// `KVM_CREATE_VM`, or the request's number; `KVM_IOEVENTFD, removed`; `close of a vCPU`.
    pub fn step(&self) -> String {
        match self.file {
            KvmFile::Vm if self.releases() => return "close of the VM".to_owned(),
            KvmFile::Vcpu if self.releases() => return "close of a vCPU".to_owned(),
            _ => {}
        }
        let number = self.request & 0xff;
        let whole = WHOLE.iter().find(|one| one.0 == self.request).map(|one| one.1);
        let is_known = |one: &&(KvmFile, u32, &str)| (one.0, one.1) == (self.file, number);
        let name = whole.or_else(|| REQUESTS.iter().find(is_known).map(|one| one.2));
        let name = name.map_or_else(|| format!("ioctl {:#x}", self.request), str::to_owned);
        if self.undoes { format!("{name}, removed") } else { name }
    }
}
