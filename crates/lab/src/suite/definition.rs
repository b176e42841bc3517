//! What an operation of a suite is: what the guest executes, and what is known of its exits.

use vmtax_events::Isa;
use vmtax_guest::order::{Backing, LifeStep, LinuxWork, Operation, Paging, PmuOrder, Touch};

use crate::Error;
use crate::host::HostKind;
use crate::paging::SimulatedProgram;
use crate::payload::arm::ArmCode;
use crate::payload::{Assemble, Assembler, Payload, PayloadParts, arm, assemble};

/// An operation of a suite.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// Its word, unique over all suites.
    pub name: &'static str,
    /// What the guest does, for people.
    pub summary: &'static str,
    /// Operations in a batch at L1.
    pub count: u32,
    /// What is known of its exits.
    pub kind: ExpectedExits,
    pub(super) code: GuestCode,
}

/// What is known of the exits of one operation before it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedExits {
    /// So many exits of this reason, on SVM and on VMX; others (a timer tick of the host) may come between.
    Each {
        /// Reason and exits of an operation on SVM.
        svm: (&'static str, u32),
        /// Reason and exits of an operation on VMX.
        vmx: (&'static str, u32),
    },
    /// As `Each`, where KVM emulates the local APIC: APICv or AVIC may handle it without an exit.
    EachByApic {
        /// Reason and exits of an operation on SVM.
        svm: (&'static str, u32),
        /// Reason and exits of an operation on VMX.
        vmx: (&'static str, u32),
    },
    /// A batch has exits. How many depends on time or on the processor.
    Some,
    /// The guest does it without leaving.
    None,
    /// Whether it exits depends on the processor.
    Measured,
}

/// The fewest exits that a batch can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Least {
    /// How many.
    pub exits: u64,
    /// The reason of each; `None` when there are several.
    pub reason: Option<&'static str>,
}

/// An operation as it is ordered.
#[derive(Clone, Debug)]
pub struct Ordered {
    /// For the guest.
    pub operation: Operation,
    /// Instructions of one operation that are not part of its path.
    pub around: u64,
    /// Addresses where the payload reads the clock, before a batch and after it.
    pub clock: (u64, u64),
}

/// The same number of exits on both.
pub(super) const fn each(svm: &'static str, vmx: &'static str) -> ExpectedExits {
    ExpectedExits::Each { svm: (svm, 1), vmx: (vmx, 1) }
}

/// What the guest executes, and what is known of its exits, on arm64.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnArm {
    pub(super) code: arm::ArmCode,
    /// Each takes an exit of this reason.
    pub(super) exits: Option<&'static str>,
    /// As [`Code::straight`].
    pub(super) straight: bool,
    /// The guest starts at EL2.
    pub(super) hypervisor: bool,
    /// The guest has KVM's own PMU.
    pub(super) counters: Option<Counters>,
}

/// What is known of the counters of KVM's PMU before an operation is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counters {
    /// They are programmed.
    Programmed,
    /// In each batch the guest finds this.
    Known(CountedValue),
}

/// What a guest must find with its counters in each batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedValue {
    /// So many instructions in its counter: those that it executed.
    Instructions(u64),
    /// This interrupt, acknowledged.
    Interrupt(u32),
}

/// What the guest executes.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestCode {
    pub(super) setup: fn(&mut Assembler) -> Assemble,
    pub(super) batch: fn(&mut Assembler) -> Assemble,
    pub(super) body: fn(&mut Assembler) -> Assemble,
    pub(super) second: Option<fn(&mut Assembler) -> Assemble>,
    pub(super) touch: Option<Touch>,
    /// The guest has this PMU.
    pub(super) pmu: Option<PmuOrder>,
    /// What a Linux guest does, in place of code; on arm64.
    pub(super) linux: Option<LinuxWork>,
    /// The VMM's step that it is, in place of code.
    pub(super) step: Option<LifeStep>,
    /// Memory with page tables of its own, whose accesses are recorded.
    pub(super) paging: Option<Paging>,
    /// Only there.
    pub(super) isa: Option<Isa>,
    /// What it is on arm64, if it is there.
    pub(super) arm: Option<OnArm>,
    /// The body is one straight line: its other instructions are not part of the path.
    pub(super) straight: bool,
    /// It leaves nothing behind but memory, registers and its APIC's state.
    pub(super) shares: bool,
    /// The guest waits for time to pass, so its cycles are no instructions.
    pub(super) waits: bool,
    /// It needs XSAVE, which L1 does not have on every host.
    pub(super) xsave: bool,
    /// The program that it starts.
    pub(super) program: Option<&'static SimulatedProgram>,
    /// Machine code of the user's, in place of the functions above.
    pub(super) own: Option<&'static OwnMachineCode>,
}

/// Machine code of an operation.
#[derive(Debug)]
pub(super) struct OwnMachineCode {
    pub(super) setup: Vec<u8>,
    pub(super) body: Vec<u8>,
    /// Instructions of a straight body that are not part of the path: all but one.
    pub(super) around: u64,
    pub(super) levels: Vec<u8>,
    /// Words of its memory, if that has page tables of its own.
    pub(super) words: Vec<u32>,
}

pub(super) fn nothing(_: &mut Assembler) -> Assemble {
    Ok(())
}

/// Memory that is only given back before each batch.
pub(super) const fn given_back(bytes: u32, backing: Backing) -> Touch {
    Touch { bytes, backing, populated: false, prefault: false, counted: false }
}

/// Code that is only its body.
pub(super) const fn line(body: fn(&mut Assembler) -> Assemble) -> GuestCode {
    GuestCode {
        setup: nothing,
        batch: nothing,
        body,
        second: None,
        touch: None,
        pmu: None,
        linux: None,
        step: None,
        paging: None,
        isa: None,
        arm: None,
        straight: true,
        shares: false,
        waits: false,
        xsave: false,
        program: None,
        own: None,
    }
}

/// Code that leaves nothing behind.
pub(super) const fn clean(code: GuestCode) -> GuestCode {
    GuestCode { shares: true, ..code }
}

pub(super) const fn with_setup(
    setup: fn(&mut Assembler) -> Assemble,
    body: fn(&mut Assembler) -> Assemble,
) -> GuestCode {
    GuestCode { setup, ..line(body) }
}

/// Code whose body loops or lets handlers run: all of it is the operation.
pub(super) const fn whole(
    setup: fn(&mut Assembler) -> Assemble,
    body: fn(&mut Assembler) -> Assemble,
) -> GuestCode {
    GuestCode { straight: false, ..with_setup(setup, body) }
}

/// Code whose body waits for a timer.
pub(super) const fn waiting(
    setup: fn(&mut Assembler) -> Assemble,
    body: fn(&mut Assembler) -> Assemble,
) -> GuestCode {
    GuestCode { waits: true, ..whole(setup, body) }
}

impl GuestCode {
    /// Nothing on x86.
    pub(super) const fn only_on_arm(self) -> GuestCode {
        GuestCode { isa: Some(Isa::Arm), ..self }
    }
}

/// Names are unique.
impl PartialEq for Definition {
    fn eq(&self, other: &Definition) -> bool {
        self.name == other.name
    }
}

impl Definition {
    /// Whether it can be executed at a level of this host.
    pub fn is_for(&self, host: HostKind, level: u8) -> bool {
        let has_xsave = level < 2 || host.guest_has_xsave();
        if self.code.own.is_some_and(|own| !own.levels.contains(&level)) {
            return false;
        }
        if self.code.paging.is_some() && (host != HostKind::Amd || level > 1) {
            return false;
        }
        if let Some(step) = self.code.step {
            let is_counted = host.counts_steps() && (level < 2 || host == HostKind::Amd);
            return is_counted && step.is_on(host.isa() == Isa::Arm);
        }
        match host.isa() {
            Isa::Arm => self.code.arm.is_some() || (self.is_of_linux() && level == 1),
            isa => self.code.isa.is_none_or(|only| only == isa) && (has_xsave || !self.code.xsave),
        }
    }

    /// Whether it is the boot of a Linux guest.
    pub fn boots(&self) -> bool {
        self.code.step == Some(LifeStep::BootLinux)
    }

    /// Whether protected VMs do it too. Their memory is not given back, shared or a file's, they have no hypervisor, and ACTLR_EL1 is undefined there.
    pub fn is_for_protected(&self) -> bool {
        let small =
            |touch: Touch| !touch.counted && matches!(touch.backing, Backing::Small | Backing::Thp);
        let is_bare =
            self.code.step.is_none() && self.code.touch.is_none_or(small) && self.name != "actlr";
        self.boots()
            || self.is_workload()
            || (is_bare
                && self.code.arm.is_some_and(|arm| !arm.hypervisor && arm.counters.is_none()))
    }

    /// The fewest conversions that a batch at this level makes.
    pub fn conversions_at(&self, level: u8) -> u64 {
        match (self.code.touch, self.kind) {
            (Some(touch), ExpectedExits::Each { .. }) if touch.counted => {
                self.count_at(level).into()
            }
            _ => 0,
        }
    }

    /// As much of it as the operations of a batch touch.
    fn touch_at(&self, level: u8) -> Option<Touch> {
        let touch = self.code.touch?;
        let bytes = u64::from(touch.bytes) * u64::from(self.count_at(level));
        Some(Touch { bytes: (bytes / u64::from(self.count.max(1))) as u32, ..touch })
    }

    /// Whether it can be measured on a host of several processors, where they wait for each other.
    pub fn is_for_several(&self) -> bool {
        self.code.step.is_some() || self.code.touch.is_some_and(|touch| touch.counted)
    }

    /// What the guest must find with counters of KVM's PMU in each batch, if that is known; on arm64.
    pub fn counted(&self) -> Option<CountedValue> {
        match self.code.arm?.counters? {
            Counters::Known(value) => Some(value),
            Counters::Programmed => None,
        }
    }

    /// The PMU that the guest has in place of KVM's.
    pub fn pmu(&self) -> Option<PmuOrder> {
        self.code.pmu
    }

    /// Whether a Linux guest does it.
    pub fn is_of_linux(&self) -> bool {
        self.code.linux.is_some()
    }

    /// What the Linux guest is booted for that does it: one guest does not do what another does.
    pub fn linux_guest(&self) -> Option<&'static str> {
        match self.code.linux {
            _ if self.boots() => Some("its boot alone"),
            Some(LinuxWork::Workload(_)) => Some("workloads"),
            Some(LinuxWork::Device(_)) => Some("disk and network"),
            Some(LinuxWork::Process) => Some("processes"),
            Some(_) => Some("counters"),
            None => None,
        }
    }

    /// Whether it is a workload of a Linux guest: a built-in one, or one of its disk or network.
    pub fn is_workload(&self) -> bool {
        matches!(self.code.linux, Some(LinuxWork::Workload(_) | LinuxWork::Device(_)))
    }

    /// The step of a VM's life that it is, if it is one.
    pub fn step(&self) -> Option<LifeStep> {
        self.code.step
    }

    /// Whether its memory accesses are recorded and their translation simulated.
    pub fn is_simulated(&self) -> bool {
        self.code.paging.is_some()
    }

    /// The program of the user's that it starts.
    pub(crate) fn program(&self) -> Option<&'static SimulatedProgram> {
        self.code.program
    }

    /// Whether the guest waits for time to pass: then there is no path length.
    pub fn waits(&self) -> bool {
        self.code.waits
    }

    /// Whether it has two vCPUs: which of them comes first is chance, and with it the number of some exits.
    pub fn races(&self) -> bool {
        self.code.second.is_some()
    }

    /// Operations in a batch. Fewer at L2, where each takes so long that most batches would see a tick of a clock.
    pub fn count_at(&self, level: u8) -> u32 {
        if level < 2 { self.count } else { self.count.div_ceil(4) }
    }

    /// The fewest exits that a batch at this level can have, interrupts of the host not counted where each operation has its
    /// own; `None` for an operation that may do without. With `apic_may_be_virtual` the processor may have APICv or AVIC.
    pub fn least_exits(&self, isa: Isa, level: u8, apic_may_be_virtual: bool) -> Option<Least> {
        if isa == Isa::Arm {
            let exits = u64::from(self.count_at(level));
            return self.code.arm?.exits.map(|reason| Least { exits, reason: Some(reason) });
        }
        let (svm, vmx) = match self.kind {
            ExpectedExits::Each { svm, vmx } => (svm, vmx),
            ExpectedExits::EachByApic { svm, vmx } if !apic_may_be_virtual => (svm, vmx),
            ExpectedExits::Some => return Some(Least { exits: 1, reason: None }),
            ExpectedExits::EachByApic { .. } | ExpectedExits::None | ExpectedExits::Measured => {
                return None;
            }
        };
        let (reason, exits) = if isa == Isa::Svm { svm } else { vmx };
        // Of several exits of an operation some may be spared by a later kernel; the first is what the operation is about.
        let exits = u64::from(self.count_at(level)) * u64::from(exits.min(1));
        (exits > 0).then_some(Least { exits, reason: Some(reason) })
    }

    /// As an order to the guest.
    ///
    /// # Errors
    /// When the payload does not assemble: a defect of the table.
    pub fn order(
        &self,
        isa: Isa,
        number: u16,
        (level, protected): (u8, bool),
        batches: u32,
    ) -> Result<Ordered, Error> {
        let code = &self.code;
        let second = code.second;
        let own_setup =
            |asm: &mut Assembler| asm.machine_code(code.own.map_or(&[], |own| &own.setup));
        let own_body =
            |asm: &mut Assembler| asm.machine_code(code.own.map_or(&[], |own| &own.body));
        let parts = PayloadParts {
            number,
            isa,
            setup: if code.own.is_some() { &own_setup } else { &code.setup },
            batch: &code.batch,
            body: if code.own.is_some() { &own_body } else { &code.body },
            second: second.as_ref().map(|f| f as &dyn Fn(&mut Assembler) -> Assemble),
        };
        let on_arm = code.arm.filter(|_| isa == Isa::Arm);
        // A protected VM goes on to memory that it has not touched yet: what comes before each batch comes once.
        let once = |arm: OnArm| {
            let code = ArmCode { setup: arm.code.batch, batch: arm::nothing, ..arm.code };
            OnArm { code, ..arm }
        };
        let is_once = protected && code.touch.is_some();
        let on_arm = on_arm.map(|arm| if is_once { once(arm) } else { arm });
        let payload = match on_arm {
            _ if self.is_of_linux() || code.step.is_some() => Ok(Payload::default()),
            Some(on_arm) => Ok(arm::assemble(number, &on_arm.code)),
            None => assemble(&parts),
        };
        let payload = payload.map_err(|error| Error::Payload { operation: self.name, error })?;
        let around = match code.own {
            Some(own) => own.around,
            None if on_arm.map_or(code.straight, |one| one.straight)
                && code.step.is_none()
                && code.linux.is_none() =>
            {
                payload.instructions.saturating_sub(1) as u64
            }
            None => 0,
        };
        let operation = Operation {
            number,
            name: self.name.to_owned(),
            level,
            code: payload.code,
            entries: payload.entries,
            batches,
            last: false,
            count: self.count_at(level),
            touch: self.touch_at(level),
            shares: code.shares,
            hypervisor: on_arm.is_some_and(|one| one.hypervisor),
            counters: on_arm.is_some_and(|one| one.counters.is_some()),
            protected,
            pmu: code.pmu,
            linux: code.linux,
            step: code.step,
            paging: code.paging,
            words: code.own.map(|own| own.words.clone()).unwrap_or_default(),
        };
        Ok(Ordered { operation, around, clock: payload.clock })
    }
}
