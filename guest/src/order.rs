//! Orders to the guest and its reports.

use serde::{Deserialize, Serialize};

use crate::functions::LoadedAddresses;

/// What to do: operations in this order, then a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub operations: Vec<Operation>,
    /// Afterwards run each once more, and record KVM's tracepoints in one batch.
    pub trace: bool,
    /// Probes that are recorded with them, as written to `kprobe_events`. They belong to the system `vmtax`.
    pub probes: Vec<String>,
    /// A program that runs beside, and its arguments. It is interrupted at the end, and
    /// what it leaves in `/out` is among the report's files.
    pub observer: Vec<String>,
    /// Say where the kernel's functions are once the observer has settled ([`crate::functions::HostKernels`], with state
    /// [`crate::mailbox::MailboxState::Running`]), and wait for a header with a higher number.
    pub functions: bool,
    /// A program that runs as a guest, in place of operations.
    pub program: Option<Program>,
    /// The program of operations that are [`Paging::program`] or [`LinuxWork::Process`].
    pub simulated: Option<RecordedProgram>,
}

/// A static program of Linux whose accesses are recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordedProgram {
    /// In a bare guest.
    Bare(UserProgram),
    /// In a Linux guest.
    Process(UserProcess),
}

/// It for a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserProcess {
    /// An ELF file.
    pub file: Vec<u8>,
    /// Its name and its arguments.
    pub words: Vec<String>,
}

/// It for no kernel, ready to start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserProgram {
    /// What its memory holds at the start, from [`crate::layout::PROGRAM`] on: addresses and bytes. All else is 0.
    pub pieces: Vec<(u32, Vec<u8>)>,
    pub entry: u32,
    /// The stack pointer at the start: the number of arguments is there.
    pub stack: u32,
    /// Memory that it can ask for: from its end on by brk(2), from the end down by mmap(2).
    pub heap: (u32, u32),
}

/// A multiboot program, ready to start in 32-bit protected mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Its word in tables.
    pub name: String,
    /// Bytes of memory from address 0.
    pub memory: u32,
    /// What memory holds at the start: addresses and bytes.
    pub pieces: Vec<(u32, Vec<u8>)>,
    pub entry: u32,
    /// Address of the multiboot information.
    pub information: u32,
}

/// What a program did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ran {
    /// What it wrote to the serial port and to the debug console.
    pub output: Vec<u8>,
    /// Bytes of output that were not kept.
    pub dropped: u64,
    /// What it wrote to the exit port.
    pub code: Option<u32>,
    /// Why it ended without.
    pub failure: Option<String>,
    /// Devices that it accessed and the VMM lacks, with the number of accesses.
    pub absent: Vec<(String, u64)>,
    /// All exits of the recorded run by the kernel's number of their reason, counted by the kernel.
    pub exits: Option<Vec<(u32, u64)>>,
    /// How the recorded run ended, if it ended otherwise.
    pub recorded: Option<String>,
}

/// A bare payload that does one thing many times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Tells its marks apart from others': see [`crate::layout::begin`].
    pub number: u16,
    /// Its word in tables.
    pub name: String,
    /// In a guest of the emulated host (1) or in a guest of that guest (2).
    pub level: u8,
    /// Machine code: see [`crate::layout`].
    pub code: Vec<u8>,
    /// Where each further vCPU starts, as an offset into the code.
    pub entries: Vec<u32>,
    /// Batches, the warming-up one included.
    pub batches: u32,
    /// These run after those of all other operations, so that the others find the host as they would without them.
    pub last: bool,
    /// Operations in a batch.
    pub count: u32,
    /// Memory at [`crate::layout::TOUCH`] that is given back before each batch.
    pub touch: Option<Touch>,
    /// It leaves nothing behind but memory, registers and its APIC's state, so it may run in the VM of others like it.
    pub shares: bool,
    /// Its vCPU has what a hypervisor needs, where not every one has: EL2 on arm64.
    pub hypervisor: bool,
    /// Its vCPU has KVM's own virtual PMU, where that has to be asked for: on arm64.
    pub counters: bool,
    /// Its VM is a protected one of pKVM, whose memory the host cannot access (`KVM_VM_TYPE_ARM_PROTECTED`).
    pub protected: bool,
    /// A virtual PMU that the VMM gives the first vCPU, in place of KVM's.
    pub pmu: Option<PmuOrder>,
    /// What a Linux guest does, in place of code.
    pub linux: Option<LinuxWork>,
    /// A step of a VM's life that the VMM takes, in place of code that its guest executes; each batch is the life of a VM.
    pub step: Option<LifeStep>,
    /// Memory with page tables of its own, whose accesses are recorded.
    pub paging: Option<Paging>,
    /// Words of that memory, if it is [`Paging::probed`]; otherwise the numbers of its frames in the order of its pages, in place of those that its
    /// scattering gives.
    pub words: Vec<u32>,
}

/// Memory at [`crate::layout::DATA`], or at [`crate::layout::PROGRAM`], mapped by tables of the guest's of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paging {
    /// Bytes: whole pages of 2 MiB.
    pub bytes: u32,
    /// What it is on the host: [`Backing::Small`], [`Backing::Thp`], [`Backing::Hugetlb`], [`Backing::GuestMemfd`], or [`Backing::Private`] without a chain, as
    /// only the guest can write to that.
    pub backing: Backing,
    /// The guest maps it in pages of 2 MiB; otherwise in pages of 4 KiB.
    pub large: bool,
    /// Its frames of 4 KiB are scattered over so many MiB of guest-physical memory; contiguous where 0.
    pub scattered_mib: u32,
    /// A cycle of pointers goes through all its pages of 4 KiB, in pseudo-random order.
    pub chain: bool,
    /// It is for chains of loads; `large`, `scattered_mib` and `chain` do not count then.
    pub probed: Option<Probed>,
    /// It is the memory of the order's [`UserProgram`], at [`crate::layout::PROGRAM`].
    pub program: bool,
}

impl Paging {
    /// Whether its frames are scattered over more than the memory itself.
    pub fn is_wide(&self) -> bool {
        self.scattered_mib > self.bytes >> 20
    }
}

/// Memory for chains of loads: huge pages of the guest, small ones, and the words of [`Operation::words`], each from a boundary of 2 MiB on.
/// It is on the host in huge pages where these are transparent, but for some of the guest's huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probed {
    /// Huge pages of the guest.
    pub regions: u32,
    /// Those of them that are in pages of 4 KiB on the host, as is the rest if they are more than half.
    pub small: u32,
    /// Small pages of the guest.
    pub pages: u32,
    /// From one to the next, in pages of guest-virtual memory.
    pub apart: u32,
}

impl Probed {
    const HUGE: u64 = 2 << 20;
    const PAGE: u64 = 4 << 10;

    /// Where small pages begin, from [`crate::layout::DATA`] on, bytes.
    pub const fn small_pages(self) -> u64 {
        self.regions as u64 * Probed::HUGE
    }

    /// Where the words begin.
    pub const fn words(self) -> u64 {
        let pages = self.pages as u64 * self.apart as u64 * Probed::PAGE;
        self.small_pages() + pages.next_multiple_of(Probed::HUGE)
    }

    /// Bytes of memory, without what lies between small pages.
    pub const fn bytes(self, words: usize) -> u64 {
        let pages = (self.pages as u64 * Probed::PAGE).next_multiple_of(Probed::HUGE);
        self.small_pages() + pages + (4 * words as u64).next_multiple_of(Probed::HUGE)
    }
}

/// A step of a VM's life. Those of one life follow each other as listed here; each of the last six before the last one is a whole start, of a VM of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LifeStep {
    /// open(2) of /dev/kvm.
    OpenKvm,
    /// `KVM_GET_SUPPORTED_CPUID`.
    SupportedCpuid,
    /// `KVM_CREATE_VM`.
    CreateVm,
    /// `KVM_CREATE_IRQCHIP`.
    CreateIrqchip,
    /// `KVM_CREATE_PIT2`.
    CreatePit,
    /// `KVM_SET_USER_MEMORY_REGION`: the first slot, after the irqchip.
    SlotFirst,
    /// `KVM_CREATE_VCPU`.
    VcpuFirst,
    /// `KVM_CREATE_VCPU`, once more.
    VcpuSecond,
    /// `KVM_ARM_VCPU_INIT`.
    VcpuInit,
    /// `KVM_CREATE_DEVICE` and `KVM_SET_DEVICE_ATTR` of the GIC.
    CreateGic,
    /// `KVM_SET_CPUID2` with all that KVM supports.
    SetCpuid,
    /// `KVM_SET_MSRS` with 16 MSRs.
    SetMsrs,
    /// `KVM_GET_SREGS` and `KVM_SET_SREGS`.
    SetSregs,
    /// `KVM_RUN` of the first vCPU, until its first exit to user space.
    RunFirst,
    /// `KVM_RUN` once more.
    RunAgain,
    /// `KVM_RUN` of the second vCPU.
    RunSecondVcpu,
    SlotTenth,
    /// A slot without mapped pages is deleted.
    SlotDeleted,
    /// Such a slot moves to another guest-physical address.
    SlotMoved,
    /// The guest stores to 256 pages of a slot.
    Faults,
    SlotDeletedMapped,
    /// `KVM_IRQFD`.
    Irqfd,
    /// `KVM_IRQFD` with `KVM_IRQFD_FLAG_DEASSIGN`.
    IrqfdDeassigned,
    /// `KVM_IOEVENTFD`.
    Ioeventfd,
    /// `KVM_IOEVENTFD` with `KVM_IOEVENTFD_FLAG_DEASSIGN`.
    IoeventfdDeassigned,
    /// Eight times both.
    IoeventfdPairs,
    /// close(2) of the second vCPU.
    CloseVcpu,
    /// close(2) of the rest of the VM, 256 pages of which were touched before.
    DestroyMapped,
    /// close(2) of an empty VM of 40 bits (arm64).
    DestroyEmpty,
    /// The same, of 44 bits (arm64).
    DestroyWide,
    /// close(2) of /dev/kvm.
    CloseKvm,
    /// From open(2) of /dev/kvm to the first exit, memory before irqchip.
    StartMemoryFirst,
    /// The same, irqchip before memory, as the next ones.
    StartIrqchipFirst,
    /// close(2) of such a VM and its vCPUs: nothing but the first page was touched.
    Destroy,
    /// A start by a process in the root cgroup.
    StartRootCgroup,
    /// A start with cgroup2's `favordynmods`.
    StartFavordynmods,
    /// A start with `rcu_expedited`.
    StartExpedited,
    /// `KVM_RUN` of a Linux guest until it powers off, apart from all others (arm64).
    BootLinux,
}

impl LifeStep {
    /// Whether VMs of x86 or of arm64 take it.
    pub fn is_on(self, arm: bool) -> bool {
        use LifeStep as S;
        match self {
            S::SupportedCpuid
            | S::CreateIrqchip
            | S::CreatePit
            | S::SetCpuid
            | S::SetMsrs
            | S::SetSregs => !arm,
            S::VcpuInit | S::CreateGic | S::DestroyEmpty | S::DestroyWide | S::BootLinux => arm,
            _ => true,
        }
    }
}

/// What a Linux guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinuxWork {
    /// With KVM's own PMU.
    Perf(LinuxPerf),
    /// So many rounds of the built-in workload after which the operation is named, behind [`LINUX`].
    Workload(u32),
    /// So many accesses to a disk or a network card.
    Device(u32),
    /// The order's [`UserProcess`], in a guest of its own whose memory is [`Operation::paging`]; on x86.
    Process,
}

/// What the names of operations begin with that a Linux guest carries out.
pub const LINUX: &str = "linux-";

/// What a thread of a Linux guest with KVM's own PMU does while events of its perf count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinuxPerf {
    pub events: u32,
    /// Samples a second of the first event; 0: none.
    pub frequency: u32,
    /// It takes turns with another thread, as many as there are operations in a batch; otherwise it computes.
    pub turns: bool,
}

/// What perf found in a batch of [`LinuxPerf`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerfBatch {
    /// Instructions of the vCPU's thread outside the guest, by a counter of the host's.
    pub host: u64,
    pub samples: u64,
    /// The part of its time for which the event had a counter that had one least.
    pub running_permille: u64,
}

/// A virtual PMU. Each of its events counts the guest's hypercalls, by the host kernel's tracepoint `kvm_hypercall`:
/// emulated processors have no PMU, and that many is exactly known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmuOrder {
    /// AMD's with PerfMonV2; else Intel's version 2.
    pub amd: bool,
    /// The host's events are reused; else created anew.
    pub reuse: bool,
}

impl PmuOrder {
    /// On a kernel's command line: `intel`, or `amd-legacy`.
    pub fn word(self) -> String {
        let vendor = if self.amd { "amd" } else { "intel" };
        if self.reuse { vendor.to_owned() } else { format!("{vendor}-legacy") }
    }

    pub fn of_word(word: &str) -> Option<PmuOrder> {
        let (vendor, reuse) = match word.strip_suffix("-legacy") {
            Some(vendor) => (vendor, false),
            None => (word, true),
        };
        let amd = match vendor {
            "amd" => true,
            "intel" => false,
            _ => return None,
        };
        Some(PmuOrder { amd, reuse })
    }
}

/// Memory to be touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touch {
    pub bytes: u32,
    /// What the memory is.
    pub backing: Backing,
    /// The host has its pages before each batch.
    pub populated: bool,
    /// `KVM_PRE_FAULT_MEMORY` maps it before each batch.
    pub prefault: bool,
    /// What the VMM does with it, and counts, in a suite about memory; elsewhere memory is only given back.
    pub counted: bool,
}

/// What a guest's memory is on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// Anonymous, in transparent huge pages.
    Thp,
    /// Anonymous, in 4 KiB pages.
    Small,
    /// A memfd of 2 MiB pages.
    Hugetlb,
    /// An ordinary VM's guest_memfd, which the VMM maps.
    GuestMemfd,
    /// Private memory of a software-protected VM: a guest_memfd that nobody maps.
    Private,
    /// Shared memory of a software-protected VM: transparent huge pages, with a guest_memfd for what becomes private.
    Shared,
    /// Memory of a software-protected VM that is private by its attributes and has no guest_memfd: each access is an exit to the
    /// VMM, which makes so many bytes shared.
    Unbacked(u32),
    /// A mapping of a snapshot, a file in the page cache: shared, or private, where a store copies the page.
    Snapshot {
        /// `MAP_SHARED`.
        shared: bool,
    },
    /// Anonymous memory whose pages a thread of the VMM copies from a snapshot, so many bytes at each fault (userfaultfd).
    Userfault(u32),
}

impl Backing {
    /// Whether what the guest touches comes from guest_memfd.
    pub fn is_guest_memfd(self) -> bool {
        matches!(self, Backing::GuestMemfd | Backing::Private)
    }

    /// Whether it needs a software-protected VM (`KVM_X86_SW_PROTECTED_VM`).
    pub fn is_protected(self) -> bool {
        matches!(self, Backing::Private | Backing::Shared | Backing::Unbacked(_))
    }
}

/// Result of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// One for each operation, in the order's order.
    pub outcomes: Vec<OrderOutcome>,
    /// `uname -r`.
    pub release: String,
    /// The processor, as the host sees it.
    pub processor: String,
    /// What the order's program did.
    pub ran: Option<Ran>,
    /// Probes that the kernel did not take, with its answer.
    pub refused: Vec<String>,
    /// Where L1 has its modules, if it was to say so.
    pub loaded: Option<LoadedAddresses>,
    /// What follows the report in the mailbox, in this order.
    pub files: Vec<FollowingFile>,
    /// Why the order could not be carried out. Then the report has nothing else.
    pub failure: Option<String>,
}

impl Report {
    /// The order could not be carried out.
    pub fn failed(problem: &str) -> Report {
        Report { failure: Some(problem.to_owned()), ..Report::default() }
    }

    /// Reads the report by which a guest says that it waits for an order.
    ///
    /// # Errors
    /// When it is none, or says why the guest cannot carry out orders.
    pub fn of_waiting(bytes: &[u8]) -> Result<(), String> {
        let report: Report = decode(bytes).ok_or("its report cannot be read")?;
        report.check(std::iter::empty())
    }

    /// Whether the order was carried out and the outcomes are those of the operations with these numbers.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, ordered: impl ExactSizeIterator<Item = u16>) -> Result<(), String> {
        if let Some(problem) = &self.failure {
            return Err(problem.clone());
        }
        let (wanted, came) = (ordered.len(), self.outcomes.len());
        if self.outcomes.iter().map(|one| one.number).eq(ordered) {
            return Ok(());
        }
        Err(format!("{wanted} operations were ordered and {came} came back, or others"))
    }
}

/// Result of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderOutcome {
    /// [`Operation::number`].
    pub number: u16,
    /// Cycles of each batch.
    pub cycles: Vec<u64>,
    /// What the guest's counter had in each batch, of an operation with counters of KVM's.
    pub counted: Vec<u64>,
    /// What perf found in each batch of a Linux guest.
    pub perf: Vec<PerfBatch>,
    /// Of the cycles of each batch, those at EL2; of a workload of a Linux guest where code at EL2 is apart from the host's kernel.
    pub at_el2: Vec<u64>,
    /// What its virtual PMU did, if it has one.
    pub pmu: Option<PmuCounting>,
    /// How its memory was mapped in the last batch, if it is about memory.
    pub memory: Option<BatchMappings>,
    /// Of the cycles of each batch, those in which the processor was idle; of a step of a VM's life.
    pub waited: Vec<u64>,
    /// Where the step of the recorded life waited: the function and its callers, and cycles until the thread ran again.
    pub places: Vec<(String, u64)>,
    /// When that step began and ended, by the clock of the recording; absent where marks tell it.
    pub window: Option<(u64, u64)>,
    /// What KVM counted of its vCPU, where it was asked for and the kernel has it.
    pub statistics: Option<Statistics>,
    /// What this kernel lacks for it: it was not run.
    pub missing: Option<String>,
    /// Why it could not be done.
    pub failure: Option<String>,
}

/// KVM's statistics of the vCPU of an operation, at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Counters by KVM's names; those that are 0 are left out.
    pub counters: Vec<(String, u64)>,
    /// Rate of the time-stamp counter that the guest reads, kHz; 0 where it is not known.
    pub tsc_khz: u32,
}

/// What the VMM and KVM's own counters say of one batch that touches memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchMappings {
    /// KVM's counters; `None` where the kernel has no statistics file (before Linux 5.14).
    pub counters: Option<KvmCounters>,
    /// Cycles that it took to populate and pre-fault the memory before the batch.
    pub prepared: u64,
    /// Conversions between private and shared that the guest asked for by hypercall.
    pub hypercalls: u64,
    /// Conversions that the VMM made at `KVM_EXIT_MEMORY_FAULT`.
    pub memory_faults: u64,
}

/// Changes of KVM's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvmCounters {
    /// Page faults of the vCPU in the batch (`pf_taken`).
    pub faults: u64,
    /// Pages of 4 KiB, 2 MiB and 1 GiB that are mapped at the end and were not when the memory had been given back.
    pub pages: [u64; 3],
}

/// What a virtual PMU did in all batches but the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmuCounting {
    /// Events of the host that were created.
    pub creates: u64,
    pub closes: u64,
    pub enables: u64,
    pub disables: u64,
    pub reads: u64,
    /// Given another distance from their overflow.
    pub periods: u64,
    /// Counts taken over from the host's events.
    pub counted: u64,
    /// Interrupts that counters asked for.
    pub interrupts: u64,
    /// That the guest got.
    pub delivered: u64,
    /// That came while one was there.
    pub merged: u64,
    /// That found the APIC's entry masked.
    pub dropped: u64,
    /// Times that the host throttled an event.
    pub throttles: u64,
    /// Other things that the host did to events: refused them, took them away.
    pub troubles: u64,
    /// The words at [`crate::layout::PROFILE`] after the last batch, all batches included: what a guest that profiles
    /// itself, or counts its faults, found.
    pub profile: [u64; 4],
}

/// A file that follows the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowingFile {
    /// Path relative to the run.
    pub name: String,
    /// Bytes.
    pub length: u32,
}

/// To bytes.
///
/// # Panics
/// Never: these types have no part that cannot be written.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).unwrap_or_default()
}

/// From bytes; `None` when they are something else.
pub fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_cannot_start_is_not_taken_for_one_that_waits() {
        assert_eq!(Report::of_waiting(&encode(&Report::default())), Ok(()));
        let failed = encode(&Report::failed("/dev/kvm: no such file"));
        assert_eq!(Report::of_waiting(&failed), Err("/dev/kvm: no such file".to_owned()));
        assert!(Report::of_waiting(b"").is_err());
    }

    #[test]
    fn a_failure_survives_the_way_back() {
        let outcome = |number| OrderOutcome { number, ..OrderOutcome::default() };
        let outcomes = [1, 2].map(outcome).to_vec();
        let report = Report { release: "6.1.0".to_owned(), outcomes, ..Report::default() };
        assert_eq!(report.check([1, 2].into_iter()), Ok(()));
        let other = report.check([1, 3].into_iter());
        assert_eq!(other, Err("2 operations were ordered and 2 came back, or others".to_owned()));
        let sent = encode(&Report::failed("no room for L2"));
        let came: Report = decode(&sent).expect("a report");
        // No operation was ordered: the number of outcomes alone does not show the failure.
        assert_eq!(came.check([].into_iter()), Err("no room for L2".to_owned()));
    }
}
