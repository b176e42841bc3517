//! Saving and restoring a machine: work in addition to Bochs's.
//!
//! Bochs copies the disk images into the folder when it saves, and back when it restores. These disks and the serial port need
//! other treatment:
//!
//! - The boot disk is not read any more once Linux runs. A hole of its size takes its place.
//! - A restored serial port receives an endless row of zeros, whatever it is connected to. A guest that
//!   keeps no terminal open on it does not notice; one that does takes an interrupt for each.
//! - The mailbox must keep what vmtax wrote. In the folder it is a link to a descriptor; a
//!   restored Bochs inherits a copy of the mailbox there, and copies that over the mailbox.
//!   The copy ends with a number of its own, so that the end of the copying can be seen.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::rand::{GetRandomFlags, getrandom};

use super::inherited::Inherited;
use super::log::BochsLog;
use super::screen::{BochsScreen, path_of};
use crate::Mailbox;
use crate::mailbox::memory;
use crate::process::ChildProcess;
use crate::state;
use crate::stream::Until;

const CONFIGURATION: &str = "config";
const BOOT_DISK: &str = "hard_drive.0.drive0.image";
const MAILBOX: &str = "hard_drive.1.drive0.image";

/// Where the button SUSPEND is in Bochs's window, which is in the corner of the screen: at the right
/// end of the bar above a text screen of 720 x 400.
const BUTTON: (&str, &str) = ("676", "22");
const QUESTION: &str = "Save Bochs state to folder";
const SAVED: &str = "WARNING";
const NOT_SAVED: &str = "ERROR";

/// How long a window may take to appear, on a busy computer.
const WINDOW: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// Bochs does not look whether its writes succeed: on a full file system it leaves holes in the
/// memory, says that it is done, and the machine fails when it is restored. A file system
/// that has this little left meanwhile is taken to have been full.
const LEAST_ROOM: u64 = 64 << 20;

/// Has Bochs save its machine into an empty folder.
pub(super) fn save(
    (screen, log): (&BochsScreen, &BochsLog),
    process: &mut ChildProcess,
    folder: &Path,
    until: Until<'_>,
) -> Result<(), String> {
    let handle = File::open(folder).map_err(|e| e.to_string())?;
    let window = open_question(screen, until)?;
    screen.act(&["windowfocus", "--sync", &window])?;
    // The field holds what was typed last, "none" at first.
    screen.act(&["key", "--delay", "0", "--repeat", "8", "BackSpace"])?;
    screen.act(&["type", "--delay", "0", &path_of(&handle)])?;
    screen.act(&["key", "Return"])?;
    loop {
        let done = screen.has_window(SAVED);
        if state::room(folder).map_err(|e| e.to_string())? < LEAST_ROOM {
            return Err(format!("less than {} MiB were free while Bochs wrote", LEAST_ROOM >> 20));
        }
        if done {
            break;
        }
        if screen.has_window(NOT_SAVED) {
            return Err("Bochs could not write its state; is the file system full?".to_owned());
        }
        if let Some(panic) = log.panic() {
            return Err(panic);
        }
        if process.ended().map_err(|e| e.to_string())?.is_some() {
            return Err("Bochs ended instead".to_owned());
        }
        until.sleep(POLL).map_err(|e| format!("waiting for Bochs to save: {e}"))?;
    }
    // Bochs asks whether to go on. It is not to: this is the state that was saved.
    process.end();
    adapt(folder).map_err(|e| e.to_string())
}

/// Clicks the button until the question is there; its window.
fn open_question(screen: &BochsScreen, until: Until<'_>) -> Result<String, String> {
    let patience = Instant::now() + WINDOW;
    while Instant::now() < patience {
        screen.act(&["mousemove", BUTTON.0, BUTTON.1, "click", "1"])?;
        let answer = Instant::now() + Duration::from_secs(1);
        while Instant::now() < answer {
            if let Some(window) = screen.window(QUESTION) {
                return Ok(window);
            }
            until.sleep(POLL).map_err(|e| format!("waiting for Bochs's dialog: {e}"))?;
        }
    }
    Err("Bochs shows no dialog to save its state in".to_owned())
}

/// Makes of what Bochs wrote what it is to restore.
fn adapt(folder: &Path) -> io::Result<()> {
    let disk = File::options().write(true).open(folder.join(BOOT_DISK))?;
    let size = disk.metadata()?.len();
    disk.set_len(0)?;
    disk.set_len(size)?;
    fs::remove_file(folder.join(MAILBOX))?;
    symlink(Inherited::Copy.path(), folder.join(MAILBOX))?;
    let path = folder.join(CONFIGURATION);
    let text = fs::read_to_string(&path)?;
    // A restored machine needs no window.
    let lines = text.lines().map(|line| match line.starts_with("display_library:") {
        true => "display_library: term",
        false => line,
    });
    fs::write(&path, lines.flat_map(|line| [line, "\n"]).collect::<String>())
}

/// An empty disk of the size that the boot disk had.
pub(super) fn boot_disk(folder: &Path) -> io::Result<File> {
    let disk = memory("vmtax-boot")?;
    disk.set_len(folder.join(BOOT_DISK).metadata()?.len())?;
    Ok(disk)
}

/// The copy of the mailbox that Bochs copies back.
pub(super) struct Copy {
    pub(super) file: File,
    mark: [u8; 16],
    marked: [u8; 16],
}

impl Copy {
    const MARK_AT: u64 = Mailbox::SIZE - 16;

    pub(super) fn of(mailbox: &Mailbox) -> io::Result<Copy> {
        let mut file = memory("vmtax-mailbox-copy")?;
        let mut from = mailbox.file().try_clone()?;
        copy_data(&mut from, &mut file)?;
        let (mut mark, mut marked) = ([0; 16], [0; 16]);
        getrandom(&mut mark, GetRandomFlags::empty())?;
        file.read_exact_at(&mut marked, Copy::MARK_AT)?;
        file.write_all_at(&mark, Copy::MARK_AT)?;
        Ok(Copy { file, mark, marked })
    }

    /// Waits until Bochs has copied it back.
    pub(super) fn wait(
        &self,
        mailbox: &Mailbox,
        (process, log): (&mut ChildProcess, &BochsLog),
        until: Until<'_>,
    ) -> Result<(), String> {
        let mut found = [0; 16];
        loop {
            // While the copying goes on, the mailbox is shorter than it should be.
            let read = mailbox.file().read_exact_at(&mut found, Copy::MARK_AT);
            if read.is_ok() && found == self.mark {
                return mailbox.write(Copy::MARK_AT, &self.marked).map_err(|e| e.to_string());
            }
            if let Some(panic) = log.panic() {
                return Err(panic);
            }
            if process.ended().map_err(|e| e.to_string())?.is_some() {
                return Err("Bochs refused it".to_owned());
            }
            let sleep = until.sleep(Duration::from_millis(1));
            sleep.map_err(|e| format!("waiting for Bochs to restore it: {e}"))?;
        }
    }
}

/// Copies what a file holds, and leaves its holes holes.
fn copy_data(from: &mut File, to: &mut File) -> io::Result<()> {
    use rustix::fs::{SeekFrom, seek};
    let end = from.metadata()?.len();
    to.set_len(end)?;
    let mut at = 0;
    // A file that ends with a hole has no data behind the last: that is an error of its own.
    while let Ok(start) = seek(&*from, SeekFrom::Data(at)) {
        let stop = seek(&*from, SeekFrom::Hole(start))?;
        let mut bytes = vec![0; usize::try_from(stop - start).unwrap_or(0)];
        from.read_exact_at(&mut bytes, start)?;
        to.write_all_at(&bytes, start)?;
        at = stop;
    }
    Ok(())
}
