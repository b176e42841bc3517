//! The user's choice of a backend: `auto`, `cpu`, `model`, or queues such as `dsa:/dev/dsa/wq0.0`.

use std::path::PathBuf;

use crate::device::Portal;
use crate::device::idxd::{self, Idxd, Roots};
use crate::device::model::{self, DeviceModel};
use crate::engine::BackendPolicy;

/// Number of model devices.
const MODELS: usize = 4;

/// A user's choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccelChoice {
    /// DSA queues that can be used, together with the CPU; the CPU alone without any.
    Auto,
    /// The CPU.
    Cpu,
    /// Four devices in software.
    Model,
    /// These queues.
    Dsa(Vec<PathBuf>),
}

/// The devices of a choice, open.
pub struct OpenDevices {
    /// Backend of operations.
    pub policy: BackendPolicy,
    /// Queues; empty: the CPU does everything.
    pub portals: Vec<Box<dyn Portal>>,
    /// Devices in software; they must outlive the engine that has their queues.
    pub models: Vec<DeviceModel>,
    /// For `auto`: unusable queues, with the reason.
    pub unusable: Vec<idxd::QueueProblem>,
}

impl AccelChoice {
    /// Parses a choice.
    ///
    /// # Errors
    /// When the text is not a choice; the error lists them.
    pub fn parse(text: &str) -> Result<AccelChoice, String> {
        match text {
            "auto" => return Ok(AccelChoice::Auto),
            "cpu" => return Ok(AccelChoice::Cpu),
            "model" => return Ok(AccelChoice::Model),
            _ => {}
        }
        let queue = |word: &str| match word.strip_prefix("dsa:") {
            Some(path) if !path.is_empty() => Ok(PathBuf::from(path)),
            _ => {
                Err("use auto, cpu, model, or queues such as dsa:/dev/dsa/wq0.0,dsa:/dev/dsa/wq1.0"
                    .to_owned())
            }
        };
        let paths: Vec<PathBuf> = text.split(',').map(queue).collect::<Result<_, _>>()?;
        let twice = |(i, path): (usize, &PathBuf)| {
            paths[..i].iter().any(|other| other.file_name() == path.file_name())
        };
        match paths.iter().enumerate().position(twice) {
            // A dedicated queue is opened once; a shared one gains nothing.
            Some(i) => Err(format!("{} is named twice; name each queue once", paths[i].display())),
            None => Ok(AccelChoice::Dsa(paths)),
        }
    }

    /// Opens the devices. `auto` leaves out queues that cannot be used; queues by name must all be usable.
    ///
    /// # Errors
    /// A queue that was named cannot be used.
    pub fn open(&self, roots: &Roots) -> Result<OpenDevices, idxd::QueueProblem> {
        let mut devices = OpenDevices {
            policy: BackendPolicy::Cpu,
            portals: Vec::new(),
            models: Vec::new(),
            unusable: Vec::new(),
        };
        match self {
            AccelChoice::Cpu => {}
            AccelChoice::Auto => {
                for queue in idxd::discover(roots).unwrap_or_default() {
                    let opened = match queue.problem.clone() {
                        Some(problem) => Err(problem),
                        None => Idxd::open(roots, queue),
                    };
                    match opened {
                        Ok(portal) => devices.portals.push(Box::new(portal)),
                        Err(problem) => devices.unusable.push(problem),
                    }
                }
                if !devices.portals.is_empty() {
                    devices.policy = BackendPolicy::Auto;
                }
            }
            AccelChoice::Model => {
                devices.policy = BackendPolicy::Device;
                for i in 0..MODELS {
                    let name = format!("model{i}");
                    let model = DeviceModel::new(model::ModelConfig {
                        name,
                        ..model::ModelConfig::default()
                    });
                    // A new model's queue has no other owner, so it opens.
                    devices
                        .portals
                        .extend(model.portal().ok().map(|p| Box::new(p) as Box<dyn Portal>));
                    devices.models.push(model);
                }
            }
            AccelChoice::Dsa(paths) => {
                devices.policy = BackendPolicy::Device;
                for path in paths {
                    let queue = idxd::find(roots, path)?;
                    devices.portals.push(Box::new(Idxd::open(roots, queue)?));
                }
            }
        }
        Ok(devices)
    }
}
