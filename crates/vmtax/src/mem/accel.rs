//! `--accel`: who does the work on pages.

use vmtax_pageops::Cpu;
use vmtax_pageops::checkpoint::Accelerate;

/// As the user says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Accel {
    Auto,
    Cpu,
}

impl Accel {
    pub(super) fn parse(text: &str) -> Result<Accel, String> {
        match text {
            "auto" => Ok(Accel::Auto),
            "cpu" => Ok(Accel::Cpu),
            _ => Err("use auto or cpu".to_owned()),
        }
    }

    /// What does the work.
    pub(super) fn open(&self) -> anyhow::Result<Opened> {
        Ok(Opened { cpu: Cpu::best() })
    }
}

pub(super) struct Opened {
    cpu: Cpu,
}

impl Opened {
    pub(super) fn scanner(&mut self) -> &mut dyn Accelerate {
        &mut self.cpu
    }

    /// What a device makes of the operations: its name, and GB/s of those that it has.
    pub(super) fn bench(&mut self, _: usize, _: u32) -> anyhow::Result<Option<(String, Vec<(&'static str, f64)>)>> {
        Ok(None)
    }

    pub(super) fn describe(&self) -> String {
        format!("cpu ({})", self.cpu.name())
    }
}
