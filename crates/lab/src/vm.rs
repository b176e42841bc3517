//! A Linux VM on the KVM of an emulated host, in which an agent runs jobs while the host records the exits.
//!
//! ```text
//!   vmtax ──mailbox──> emulated host (L0), which records ──port──> VM with the agent (L1)
//!   vmtax ──mailbox──> emulated host (L0), which records ──port──> VM with KVM (L1) ──port──> its VM with the agent (L2)
//! ```
//! Each is booted once and saved, when its agent first waits for a job. On arm64 there is no nested one, and kernels that are not saved boot each time.
//!
//! Left out: the jobs (`vmtax-bench`), and the analysis of exits (`vmtax-analyse`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use vmtax_guest::job::{Job, JobAnswer, JobOutcome, JobRequest};
use vmtax_guest::order::{PmuOrder, decode, encode};
use vmtax_machine::cpio::{self, ArchiveEntry};
use vmtax_machine::kernel::Kernel;
use vmtax_machine::programs::{self, FilesByPath};
use vmtax_machine::{Initramfs, Machine, Mailbox, QemuOptions, Stop, VmSpec};

use crate::conversation::{Conversation, strange};
use crate::host::{
    Booting, HostKind, HostRecord, ONE_BY_ONE, Ready, What, base_of, check_recorded, inner_kernel,
    later, modules, program_of,
};
use crate::profile::{BatchClock, Clocked, OperationMeasure, OperationProfile, RecordReading};
use crate::{Error, trace_dat};

/// Memory of a host, without that of its guest and of unpacked files, MiB.
const HOST_MIB: u32 = 192;
/// Most memory of the host: the guest's memory must be below the device gap.
const MOST_MIB: u32 = 3 << 10;
/// Size of the trace buffers of all processors, KiB; they must fit in the mailbox.
const BUFFER_KIB: u32 = 48 << 10;

/// Configuration of a level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmLevel {
    /// Words on its kernel's command line.
    pub words: Vec<String>,
    /// Modules that it loads.
    pub modules: Vec<String>,
    /// What its memory is on the level below, if not anonymous memory in pages of 4 KiB: `thp`, `guest-memfd`, `private`.
    pub backing: Option<String>,
}

/// The levels and their configuration.
#[derive(Clone, Debug)]
pub struct VmPlan {
    pub host: HostKind,
    /// Parameters of the host's modules, and other words of its kernel's command line: `kvm.halt_poll_ns=0`.
    pub options: Vec<String>,
    /// One VM, or a VM and the nested VM in it; the innermost has the agent. Empty: the agent is on the emulated host itself.
    pub levels: Vec<VmLevel>,
    /// Memory of the VM with the agent, MiB.
    pub memory_mib: u32,
    /// Processors of the emulated host, and vCPUs of each VM on it but the one with the agent. With counted instructions they take turns.
    pub processors: u32,
    /// vCPUs of the VM with the agent, which share the processor below it, or are pinned in turn to several.
    pub cpus: u32,
    pub pmu: Option<PmuOrder>,
}

/// Everything needed to boot.
#[derive(Clone, Debug)]
pub struct VmSetup {
    /// The levels and their configuration.
    pub plan: VmPlan,
    /// The kernel of all levels.
    pub kernel: Kernel,
    /// Programs for the VM with the agent.
    pub files: FilesByPath,
    /// Folder for saved states.
    pub cache: PathBuf,
    /// Boot again, and replace the saved state.
    pub fresh: bool,
    /// The file for the console.
    pub console: PathBuf,
    /// Wall-clock limit of booting.
    pub limit: Duration,
    /// Wall-clock limit of an answer.
    pub answer: Duration,
    /// Record what the machine executes during one job, [`LabVm::profile`].
    pub profile: bool,
    /// Functions whose instructions that has.
    pub annotate: Vec<String>,
    pub stop: Stop,
}

/// A running VM. It ends when dropped.
#[derive(Debug)]
pub struct LabVm {
    machine: Machine,
    conversation: Conversation,
    release: String,
    answer: Duration,
    /// The recorder of its instructions, until a job was recorded.
    recorded: Option<HostRecord>,
    /// Functions whose instructions the record has.
    annotate: Vec<String>,
}

/// An answer, and the host's recording.
#[derive(Debug)]
pub struct Answered {
    pub answer: JobAnswer,
    /// The recording, a `trace.dat`.
    pub trace: Option<Vec<u8>>,
    /// Events lost in its buffer.
    pub lost: u64,
}

impl VmPlan {
    /// The command line of a level: 0 is the emulated host, the last level has the agent. Memory for the next level's kernel is not yet
    /// included.
    pub fn command_line(&self, level: usize) -> String {
        self.line(level, self.memory(level + 1, 0))
    }

    fn line(&self, level: usize, memory_of_next: u32) -> String {
        let mut relay = match self.levels.is_empty() {
            true => "vmtax.role=agent".to_owned(),
            false => format!("vmtax.role=relay vmtax.memory={memory_of_next}"),
        };
        let cpus = self.cpus(level + 1);
        if level < self.levels.len() && cpus > 1 {
            relay.push_str(&format!(" vmtax.cpus={cpus}"));
        }
        if level + 1 == self.levels.len()
            && let Some(pmu) = self.pmu
        {
            relay.push_str(&format!(" vmtax.pmu={}", pmu.word()));
        }
        if let Some(backing) = self.levels.get(level).and_then(|next| next.backing.as_ref()) {
            relay.push_str(&format!(" vmtax.backing={backing}"));
        }
        let Some(own) = level.checked_sub(1).and_then(|index| self.levels.get(index)) else {
            let options = self.options.iter().map(|option| format!(" {option}"));
            let starts = if self.processors > 1 { ONE_BY_ONE } else { "" };
            return format!(
                "{}{starts} panic=-1 {relay} vmtax.buffer={}{}",
                self.host.command_line(),
                BUFFER_KIB / self.processors.max(1),
                options.collect::<String>()
            );
        };
        let role = if level == self.levels.len() {
            // It stands still between jobs, which Linux takes for a processor that is stuck.
            let waits = if self.host == HostKind::Arm { " nosoftlockup" } else { "" };
            format!("vmtax.role=agent vmtax.port{waits}")
        } else {
            format!("{relay} vmtax.port")
        };
        let words = own.words.iter().map(|word| format!(" {word}")).collect::<String>();
        self.host.inner_command_line(&role) + &words
    }

    /// Processors of a level.
    fn cpus(&self, level: usize) -> u32 {
        if level == self.levels.len() && level > 0 { self.cpus } else { self.processors }
    }

    /// Memory of a level, MiB, if its files for the next level have this size.
    fn memory(&self, level: usize, bytes: usize) -> u32 {
        let packed = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
        match self.levels.len().saturating_sub(level) {
            0 => self.memory_mib,
            above => self.memory_mib + above as u32 * (HOST_MIB + 3 * packed),
        }
    }
}

impl VmSetup {
    /// The same, whose VMs start later, by an amount that depends on how many attempts at this were lost.
    pub fn later(&self, lost: usize) -> VmSetup {
        let mut setup = self.clone();
        setup.plan.options.extend(later(lost));
        setup
    }

    /// Boots or restores it.
    pub fn start(&self, progress: &dyn Fn(&str)) -> Result<LabVm, Error> {
        let (spec, archive) = self.spec()?;
        if spec.memory_mib > MOST_MIB {
            let message = format!(
                "it would need {} MiB of memory and can have {MOST_MIB}; lower vm.memory",
                spec.memory_mib
            );
            return Err(Error::Guest { message });
        }
        if self.profile {
            check_recorded(spec.emulator, self.plan.processors)?;
        }
        let booting = Booting {
            spec: &spec,
            cache: &self.cache,
            fresh: self.fresh,
            recorded: self.profile.then_some(What::Code),
            // The functions are told before the job that is recorded.
            observed: true,
            order: None,
            has_guests: true,
        };
        let Ready { machine, conversation, recorded, .. } =
            booting.start((&archive, &|| Ok(archive.clone())), progress)?;
        Ok(LabVm {
            machine,
            conversation,
            release: self.kernel.release.clone(),
            answer: self.answer,
            recorded,
            annotate: self.annotate.clone(),
        })
    }

    /// The spec of the machine, and its initramfs. Built from the innermost level outwards: each contains the next one's kernel and files.
    fn spec(&self) -> Result<(VmSpec, Vec<u8>), Error> {
        let plan = &self.plan;
        let (program, vmlinux) = (program_of(plan.host)?, inner_kernel(plan.host, &self.kernel)?);
        let count = plan.levels.len();
        let mut archive = Vec::new();
        for level in (0..=count).rev() {
            let own = level.checked_sub(1).and_then(|index| plan.levels.get(index));
            let mut names: Vec<&str> =
                own.map_or(Vec::new(), |own| own.modules.iter().map(String::as_str).collect());
            if level < count || count == 0 {
                names.extend(plan.host.modules());
            }
            let modules = modules(&self.kernel, &names)?;
            let mut entries = base_of(program, &modules);
            let line = plan.line(level + 1, plan.memory(level + 2, vmlinux.len()));
            if level < count {
                entries.push(ArchiveEntry::folder("l1"));
                entries.push(ArchiveEntry::file("l1/vmlinux", 0o644, &vmlinux));
                entries.push(ArchiveEntry::file("l1/initramfs", 0o644, &archive));
                entries.push(ArchiveEntry::file("l1/command_line", 0o644, line.as_bytes()));
            } else {
                entries.push(ArchiveEntry::folder("tmp"));
                entries.extend(programs::entries(&self.files));
            }
            archive = cpio::archive(&entries)?;
        }
        let spec = VmSpec {
            emulator: plan.host.emulator(),
            kernel: self.kernel.clone(),
            command_line: plan.line(0, plan.memory(1, vmlinux.len())),
            memory_mib: plan.memory(0, vmlinux.len() + archive.len() / 2),
            initramfs: Initramfs::Bytes(Arc::default()),
            cpus: plan.processors,
            mailbox: Mailbox::new()?,
            console: self.console.clone(),
            limit: self.limit,
            stop: self.stop.clone(),
            options: QemuOptions { mailbox: plan.host.mailbox(), ..QemuOptions::default() },
        };
        Ok((spec, archive))
    }
}

impl LabVm {
    /// Sends a request to the agent.
    pub fn ask(&mut self, request: &JobRequest) -> Result<Answered, Error> {
        self.machine.allow(self.answer);
        let bytes = self.conversation.ask(&mut self.machine, &encode(request))?;
        let answer: JobAnswer = decode(&bytes).ok_or_else(strange)?;
        let mut answered = Answered { answer, trace: None, lost: 0 };
        if let JobAnswer::Done(outcome) = &answered.answer
            && !outcome.files.is_empty()
        {
            let files = self.conversation.files(bytes.len(), &outcome.files)?;
            answered.lost = trace_dat::lost(&files);
            answered.trace = Some(trace_dat::assemble(&files, &self.release)?);
        }
        Ok(answered)
    }

    /// Has a job carried out and everything recorded that the machine executes while its client runs: the job's outcome and the call trees, or why there are
    /// none. One job of a VM can be recorded.
    pub fn profile(
        &mut self,
        job: &Job,
        workload: &str,
    ) -> Result<(JobOutcome, Result<OperationProfile, String>), Error> {
        let Some(made) = self.recorded.take() else {
            return Ok((JobOutcome::default(), Err("nothing records this VM".to_owned())));
        };
        let kernels = match self.ask(&JobRequest::Kernels)?.answer {
            JobAnswer::Kernels(kernels) => kernels,
            JobAnswer::Done(outcome) => {
                let problem = outcome.problem.clone();
                return Ok((outcome, Err(problem)));
            }
            JobAnswer::Facts(_) => return Err(strange()),
        };
        let window = Clocked { level: 0, clock: BatchClock::Vmm };
        let reading = RecordReading::start(
            HostRecord { kernels: encode(&kernels), ..made },
            BTreeMap::from([(WINDOW, window)]),
            (&[], &self.annotate),
        )?;
        let job = Job { profile: true, record: false, ..job.clone() };
        let outcome = self.ask(&JobRequest::Do(job))?.answer.outcome().ok_or_else(strange)?;
        let Some(cycles) = outcome.profiled else {
            let problem = format!("the workload did not run to its end: {}", outcome.problem);
            return Ok((outcome, Err(problem)));
        };
        let cycles = &[cycles][..];
        let measure = OperationMeasure { number: WINDOW, workload, cycles, around: 0 };
        let profile = reading.finish().profile(&measure);
        Ok((outcome, profile))
    }
}

/// The number between whose marks the recorder records the client of a job.
const WINDOW: u16 = 0;
