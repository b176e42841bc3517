//! Whether this computer can run an emulator.

use crate::spec::find;
use crate::{Emulator, Error, bochs, qemu};

/// Checks whether this computer can run that emulator; the error names what is missing.
pub fn check(emulator: Emulator) -> Result<(), Error> {
    match emulator {
        Emulator::Bochs { .. } => return bochs::check(),
        Emulator::Tcg { .. } | Emulator::TcgArm => {}
        Emulator::Kvm => qemu::check_kvm()?,
    }
    let board = qemu::board(emulator);
    if find(board.program).is_none() { Err(board.missing()) } else { Ok(()) }
}

/// Checks whether machines on that emulator can be saved here; the error names what is missing.
pub fn can_save(emulator: Emulator) -> Result<(), Error> {
    if matches!(emulator, Emulator::Bochs { .. }) { bochs::can_save() } else { check(emulator) }
}
