//! What of a machine must be equal when its state is restored.

use crate::state::Identity;
use crate::{Emulator, Options, Spec, bochs, qemu};

impl Identity {
    pub(crate) fn of(spec: &Spec) -> Identity {
        Identity {
            emulator: spec.emulator.to_string(),
            settings: match spec.emulator {
                emulator @ Emulator::Bochs { .. } => bochs::settings(emulator),
                emulator if spec.options == Options::default() => {
                    qemu::accelerator(emulator).join(" ")
                }
                emulator => {
                    qemu::arguments(emulator, spec.cpus, spec.memory_mib, &spec.options).join(" ")
                }
            },
            memory_mib: spec.memory_mib,
            cpus: spec.cpus,
        }
    }
}
