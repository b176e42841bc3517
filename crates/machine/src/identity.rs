//! What of a machine must be equal when its state is restored.

use crate::state::Identity;
use crate::{Emulator, QemuOptions, VmSpec, bochs, qemu};

impl Identity {
    pub(crate) fn of(spec: &VmSpec) -> Identity {
        Identity {
            emulator: spec.emulator.to_string(),
            settings: match spec.emulator {
                emulator @ Emulator::Bochs { .. } => bochs::settings(emulator),
                emulator if spec.options == QemuOptions::default() => {
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
