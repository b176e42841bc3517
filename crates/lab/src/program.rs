//! A multiboot program as a guest of the emulated host's KVM: a test of kvm-unit-tests, or any that uses the same devices.
//!
//! It runs twice. The first run gives its output and verdict, and is not recorded, so that what the program itself measures is not
//! longer for it. The second is recorded.
//!
//! Left out: which devices there are (`vmtax-guest`), several processors, and programs of L2.

mod firmware;
mod multiboot;

use std::path::Path;

use vmtax_durable::read_small;
use vmtax_events::{Event, EventKind};
use vmtax_guest::order::{Order, Program};

use crate::conversation::GuestAnswer;
use crate::host::{HostSetup, Ready};
use crate::outcomes::{EndedProgram, Outcomes};
use crate::window::port;
use crate::{Error, trace_dat};

/// Bytes of memory of a program, as much as QEMU gives a machine.
const MEMORY: u32 = 128 << 20;
/// Most bytes of a file.
pub(crate) const MOST_FILE: u64 = 64 << 20;
/// Most bytes that are loaded from it: an order must fit the mailbox.
pub(crate) const MOST_LOADED: usize = 4_000_000;
/// Most bytes of a command line.
const MOST_LINE: usize = 2000;
/// The VM of a program in its recording.
const VM: u32 = 1;
/// The port whose write ends a program.
const EXIT_PORT: u16 = 0xf4;

/// A program that can run.
#[derive(Clone, Debug)]
pub struct ProgramImage(Program);

impl ProgramImage {
    /// Reads a multiboot image. `arguments` follow its name on its command line.
    ///
    /// # Errors
    /// When it cannot be read, is not a multiboot image, or cannot be loaded.
    pub fn read(path: &Path, arguments: &str) -> Result<ProgramImage, Error> {
        let problem = |problem: String| Error::Program { path: path.to_owned(), problem };
        let bytes = read_small(path, MOST_FILE).map_err(Error::io(path, "read the program"))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        loaded(name, &bytes, arguments).map(ProgramImage).map_err(problem)
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }
}

fn loaded(name: String, bytes: &[u8], arguments: &str) -> Result<Program, String> {
    let line = [name.as_str(), arguments].join(" ").trim_end().to_owned();
    if line.len() > MOST_LINE || line.contains('\0') {
        return Err(format!(
            "its command line must have at most {MOST_LINE} bytes, none of them 0"
        ));
    }
    let multiboot::LoadedImage { entry, mut pieces, taken } = multiboot::load(bytes, MEMORY)?;
    let size: usize = pieces.iter().map(|(_, bytes)| bytes.len()).sum();
    if size > MOST_LOADED {
        return Err(format!("has {size} bytes to load, and at most {MOST_LOADED} can be loaded"));
    }
    let information = firmware::free_page(&taken)
        .ok_or("leaves no page below 640 KiB free for the multiboot information")?;
    pieces.push((information, firmware::information(information, &line, MEMORY)));
    pieces.push((firmware::ACPI, firmware::acpi()));
    Ok(Program { name, memory: MEMORY, pieces, entry, information })
}

/// Boots or restores a host and runs the program there.
///
/// # Errors
/// When the host does not come up, or the program does not end within the limit. How a program ends is an outcome.
pub fn run(
    setup: &HostSetup,
    image: &ProgramImage,
    progress: &dyn Fn(&str),
) -> Result<Outcomes, Error> {
    let order = Order { program: Some(image.0.clone()), trace: true, ..Order::default() };
    let Ready { mut machine, mut conversation, start, .. } = setup.start(&order, progress)?;
    progress("running the program");
    let GuestAnswer { report, files } =
        conversation.execute(&mut machine, &order, &mut |_| Ok(()))?;
    machine.finish()?;
    let lacks = |what: &str| Error::Report { problem: format!("it lacks {what}") };
    if let Some(problem) = report.failure {
        return Err(Error::Report { problem });
    }
    let ran = report.ran.ok_or_else(|| lacks("the program's end"))?;
    Ok(Outcomes {
        operations: Vec::new(),
        program: Some(EndedProgram::new(image.name(), ran, setup.host)),
        vms: vec![(VM, image.name().to_owned())],
        trace_lost: trace_dat::lost(&files),
        trace: Some(trace_dat::assemble(&files, &report.release)?),
        files: Vec::new(),
        release: report.release,
        processor: report.processor,
        start,
    })
}

/// The events of a program's VM: all from its first entry to the exit that ends it.
#[derive(Debug, Default)]
pub struct WholeProgram {
    state: ProgramState,
    /// Exits that were seen.
    pub exits: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum ProgramState {
    #[default]
    Before,
    Inside,
    Over,
}

impl WholeProgram {
    /// The event as one of the program's, or `None` for one before or after it.
    pub fn place(&mut self, event: &Event) -> Option<Event> {
        match (&self.state, event.kind) {
            (ProgramState::Before, EventKind::Entry) => self.state = ProgramState::Inside,
            (ProgramState::Inside, EventKind::Exit { reason, info1, .. }) => {
                self.exits += 1;
                if port(reason, info1) == Some(EXIT_PORT) {
                    self.state = ProgramState::Over;
                }
            }
            _ => {}
        }
        (self.state == ProgramState::Inside).then_some(Event { pid: VM, ..*event })
    }
}
