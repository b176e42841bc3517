//! A running machine, whatever runs it.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::bochs::BochsMachine;
use crate::console::Console;
use crate::look::{KernelWatch, MachineLook};
use crate::process::{ChildProcess, describe};
use crate::qemu::{self, QemuMachine, StartFrom};
use crate::recorder::MachineRecorder;
use crate::state::{self, NewState};
use crate::stream::Until;
use crate::{Emulator, Error, Stop, Tail, VmSpec, check};

/// Time between two polls.
const POLL: Duration = Duration::from_millis(2);
/// Most time to wait for the rest of a panic message.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// Silence after which a panic message counts as complete.
const SILENCE: Duration = Duration::from_millis(300);
/// Timeout of the power-off of a finished machine.
const GRACE: Duration = Duration::from_secs(2);

/// The emulator-specific part of a machine.
#[derive(Debug)]
enum Control {
    Qemu(QemuMachine),
    Bochs(BochsMachine),
}

/// A running machine. Dropping it ends it: its processes are gone when that returns.
#[derive(Debug)]
pub struct Machine {
    emulator: Emulator,
    limit: Duration,
    deadline: Instant,
    console: Console,
    process: ChildProcess,
    control: Control,
    stop: Stop,
    /// Requirements for restoring a saved state.
    identity: state::Identity,
    /// Whether waits end when its kernel is stuck.
    watched: bool,
}

impl Machine {
    /// Starts the machine. Later errors are returned by [`Machine::wait`].
    pub fn boot(spec: &VmSpec) -> Result<Machine, Error> {
        check::check(spec.emulator)?;
        Machine::offer(spec)
    }

    /// As [`Machine::boot`] on QEMU, with what the machine executes recorded. It must have one processor.
    pub fn boot_recorded(spec: &VmSpec, recorder: MachineRecorder) -> Result<Machine, Error> {
        check::check(spec.emulator)?;
        Machine::first(spec, Some(recorder))
    }

    /// As [`Machine::boot`], without asking what this computer has: QEMU and KVM say what they miss.
    pub fn offer(spec: &VmSpec) -> Result<Machine, Error> {
        Machine::first(spec, None)
    }

    fn first(spec: &VmSpec, recorder: Option<MachineRecorder>) -> Result<Machine, Error> {
        Machine::start(spec, |console| match spec.emulator {
            Emulator::Bochs { .. } => {
                let (bochs, process) = BochsMachine::boot(spec, console)?;
                Ok((Control::Bochs(bochs), process))
            }
            Emulator::Tcg { .. } | Emulator::TcgArm | Emulator::Kvm => {
                let image = match spec.options.firmware {
                    Some(_) => spec.kernel.image.clone(),
                    None => spec.kernel.bootable()?,
                };
                let (qemu, process) =
                    QemuMachine::start(spec, StartFrom::Boot(&image), recorder, console)?;
                Ok((Control::Qemu(qemu), process))
            }
        })
    }

    /// Continues from a state that [`Machine::save`] made of a machine with an equal spec. The
    /// mailbox is not part of the state: the guest sees what it holds now.
    pub fn restore(spec: &VmSpec, state: &Path) -> Result<Machine, Error> {
        Machine::resume(spec, state, None)
    }

    /// As [`Machine::restore`], with what the machine executes recorded. It must have one processor.
    pub fn restore_recorded(
        spec: &VmSpec,
        state: &Path,
        recorder: MachineRecorder,
    ) -> Result<Machine, Error> {
        Machine::resume(spec, state, Some(recorder))
    }

    fn resume(
        spec: &VmSpec,
        state: &Path,
        recorder: Option<MachineRecorder>,
    ) -> Result<Machine, Error> {
        check::check(spec.emulator)?;
        let _lock = state::lock(state)?;
        state::check(state, &state::Identity::of(spec))?;
        let mut machine = Machine::start(spec, |console| match spec.emulator {
            Emulator::Bochs { .. } => {
                let until = Until::after(spec.limit).or_stopped(spec.stop.flag());
                let (bochs, process) =
                    BochsMachine::restore(spec, (state, recorder), console, until)?;
                Ok((Control::Bochs(bochs), process))
            }
            Emulator::Tcg { .. } | Emulator::TcgArm | Emulator::Kvm => {
                let memory = state::open(state, qemu::MEMORY)?;
                let (qemu, process) =
                    QemuMachine::start(spec, StartFrom::State(memory), recorder, console)?;
                Ok((Control::Qemu(qemu), process))
            }
        })?;
        let until = Until::deadline(machine.deadline).or_stopped(spec.stop.flag());
        let resumed = match &mut machine.control {
            Control::Qemu(qemu) => qemu.resumed(until),
            Control::Bochs(_) => Ok(()),
        };
        resumed.map_err(|problem| Error::State { path: state.to_owned(), problem })?;
        Ok(machine)
    }

    fn start(
        spec: &VmSpec,
        start: impl FnOnce(&Console) -> Result<(Control, ChildProcess), Error>,
    ) -> Result<Machine, Error> {
        let deadline = Instant::now() + spec.limit;
        let console = Console::create(&spec.console)?;
        let (control, process) = start(&console)?;
        Ok(Machine {
            emulator: spec.emulator,
            limit: spec.limit,
            deadline,
            console,
            process,
            control,
            stop: spec.stop.clone(),
            identity: state::Identity::of(spec),
            watched: false,
        })
    }

    /// Sets the time left until its timeout.
    pub fn allow(&mut self, limit: Duration) {
        self.limit = limit;
        self.deadline = Instant::now() + limit;
    }

    /// Ends waits when its only processor stays in the same few instructions of a kernel with interrupts off, which a minute and more of silence show: an
    /// error of its own, [`Error::Stuck`].
    pub fn watch_kernel(&mut self) {
        self.watched = true;
    }

    /// Polls every few milliseconds until `poll` gives something. Fails when the machine ends first,
    /// fails, is out of time, or a stop is requested; then it should be dropped.
    pub fn wait<T>(&mut self, mut poll: impl FnMut() -> Option<T>) -> Result<T, Error> {
        let mut watch = self.watched.then(KernelWatch::new);
        loop {
            if let Some(found) = poll() {
                return Ok(found);
            }
            if let Some(failure) = self.failure()? {
                if self.console.is_full() {
                    self.process.end();
                }
                self.hear_out()?;
                return Err(self.failed(failure));
            }
            if self.ended_within(Duration::ZERO)? {
                // Its last action counts even if it has ended.
                return poll().map_or_else(|| Err(self.epitaph()), Ok);
            }
            if self.stop.is_requested() {
                self.process.end();
                return Err(Error::Stopped { emulator: self.emulator });
            }
            if Instant::now() >= self.deadline {
                let (doing, registers) = self.doing();
                let console = self.given_up(&registers);
                let (emulator, limit) = (self.emulator, self.limit);
                return Err(Error::Limit { emulator, limit, doing, console });
            }
            if let Some(watch) = watch.as_mut().filter(|watch| watch.is_due())
                && let Some(look) = self.look()
                && let Some(at) = watch.take(look.clone())
            {
                let console = self.given_up(&look.text);
                return Err(Error::Stuck { emulator: self.emulator, at, console });
            }
            thread::sleep(POLL);
        }
    }

    /// What it does in a second: in words, and its registers before and after.
    fn doing(&mut self) -> (String, String) {
        let Some(first) = self.look() else { return Default::default() };
        thread::sleep(Duration::from_secs(1));
        let Some(second) = self.look() else { return Default::default() };
        (format!("; {}", second.words(&first)), first.text + &second.text)
    }

    /// Ends it, and adds its registers to the console's file. The end of what it wrote itself.
    fn given_up(&mut self, registers: &str) -> Tail {
        self.process.end();
        let tail = self.console.tail();
        if !registers.is_empty() {
            self.console.add(registers);
        }
        tail
    }

    /// A look at it; `None` where its emulator does not answer.
    fn look(&mut self) -> Option<MachineLook> {
        /// Time for the answer.
        const ANSWER: Duration = Duration::from_secs(5);
        let Control::Qemu(qemu) = &mut self.control else { return None };
        let text = qemu.registers(Until::after(ANSWER)).ok()?;
        Some(MachineLook::new(text, self.process.id()))
    }

    /// Stops the machine and saves it, without the mailbox, into the folder `state`, which is replaced atomically. The machine ends in
    /// any case.
    pub fn save(mut self, state: &Path) -> Result<(), Error> {
        let new = NewState::create(state)?;
        let until = Until::deadline(self.deadline).or_stopped(self.stop.flag());
        let saved = match &mut self.control {
            Control::Qemu(qemu) => qemu.save(&new, until),
            Control::Bochs(bochs) => bochs.save(&mut self.process, new.path(), until),
        };
        saved.map_err(|error| new.failed(error))?;
        self.process.end();
        new.publish(&self.identity)
    }

    /// Gives the machine a moment to power off, then ends it. Fails if it failed meanwhile.
    pub fn finish(mut self) -> Result<(), Error> {
        self.ended_within(GRACE)?;
        self.process.end();
        match self.failure()? {
            Some(failure) => Err(self.failed(failure)),
            None => Ok(()),
        }
    }

    /// Pins each vCPU to a processor, in the order given.
    pub fn pin(&mut self, processors: &[usize]) -> Result<(), Error> {
        let emulator = self.emulator;
        let problem = |problem: String| Error::Control { emulator, what: "pin the vCPUs", problem };
        let Control::Qemu(qemu) = &mut self.control else {
            return Err(problem("it has no threads of its own for them".to_owned()));
        };
        let until = Until::deadline(self.deadline).or_stopped(self.stop.flag());
        let threads = qemu.vcpu_threads(until).map_err(problem)?;
        if threads.is_empty() || threads.len() > processors.len() {
            let counts = format!("{} vCPUs, {} processors", threads.len(), processors.len());
            return Err(problem(counts));
        }
        for (thread, processor) in threads.iter().zip(processors) {
            let mut set = rustix::thread::CpuSet::new();
            set.set(*processor);
            let thread = rustix::process::Pid::from_raw(thread.cast_signed());
            rustix::thread::sched_setaffinity(thread, &set)
                .map_err(|e| problem(format!("processor {processor}: {e}")))?;
        }
        Ok(())
    }

    pub fn process(&self) -> u32 {
        self.process.id()
    }

    fn failure(&mut self) -> Result<Option<String>, Error> {
        Ok(self.console.failure()?.map(str::to_owned))
    }

    fn failed(&self, failure: String) -> Error {
        Error::Failed { emulator: self.emulator, failure, console: self.console.tail() }
    }

    /// Waits for the rest of a failed machine's message. It may reset at once, or never.
    fn hear_out(&mut self) -> Result<(), Error> {
        let end = Instant::now() + LAST_WORDS;
        let mut heard = self.console.length();
        while !self.ended_within(SILENCE)? && Instant::now() < end {
            let length = self.console.length();
            if length == heard {
                break;
            }
            heard = length;
        }
        Ok(())
    }

    fn ended_within(&mut self, time: Duration) -> Result<bool, Error> {
        let end = Instant::now() + time;
        loop {
            if let Control::Bochs(bochs) = &self.control
                && bochs.panic().is_some()
            {
                // It may still run and show a dialog.
                self.process.end();
            }
            let ended = self.process.ended();
            if ended.map_err(Error::io(Path::new("the emulator"), "watch it"))?.is_some() {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            thread::sleep(POLL);
        }
    }

    /// Why the machine ended.
    fn epitaph(&mut self) -> Error {
        // A failure that was printed between the last look at the console and the end.
        if let Ok(Some(failure)) = self.failure() {
            return self.failed(failure);
        }
        let status = self.process.ended().ok().flatten();
        let how = match &mut self.control {
            Control::Qemu(qemu) => qemu.epitaph(),
            Control::Bochs(bochs) => bochs.panic(),
        };
        let how = how.or_else(|| status.map(|s| format!("of the emulator, {}", describe(s))));
        Error::Ended {
            emulator: self.emulator,
            how: how.unwrap_or_else(|| "nobody knows why".to_owned()),
            console: self.console.tail(),
        }
    }
}
