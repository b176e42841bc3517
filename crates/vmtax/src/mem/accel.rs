//! `--accel`: the backend of page operations, open.

use std::time::{Duration, Instant};

use vmtax_analyse::samples::median;
use vmtax_cli::exit::{Code, CodedError};
use vmtax_pageops::accel::{AccelChoice, OpenDevices};
use vmtax_pageops::checkpoint::Accelerate;
use vmtax_pageops::device::idxd::Roots;
use vmtax_pageops::device::model::DeviceModel;
use vmtax_pageops::engine::PageEngine;
use vmtax_pageops::engine::{self, Dispatcher, EngineConfig};
use vmtax_pageops::{Cpu, PageFacts};

/// An open backend.
pub(super) struct OpenedBackend {
    worker: Worker,
    /// Appended to the description.
    why: &'static str,
    /// Devices in software; they must outlive the engine that uses them.
    models: Vec<DeviceModel>,
}

enum Worker {
    Cpu(Cpu),
    Engine(Box<PageEngine>),
}

impl OpenedBackend {
    /// Opens the backend that the user chose.
    ///
    /// # Errors
    /// When a queue that was named cannot be used.
    pub(super) fn new(accel: &AccelChoice) -> anyhow::Result<OpenedBackend> {
        let OpenDevices { policy, portals, models, .. } = accel
            .open(&Roots::default())
            .map_err(|problem| CodedError::new(Code::Input, format!("--accel: {problem}")))?;
        if portals.is_empty() {
            let why =
                if *accel == AccelChoice::Auto { "; no DSA queue can be used here" } else { "" };
            return Ok(OpenedBackend { worker: Worker::Cpu(Cpu::best()), why, models });
        }
        let config = EngineConfig { policy, ..EngineConfig::default() };
        let engine = PageEngine::new(Dispatcher::new(config, portals));
        Ok(OpenedBackend { worker: Worker::Engine(Box::new(engine)), why: "", models })
    }

    pub(super) fn scanner(&mut self) -> &mut dyn Accelerate {
        match &mut self.worker {
            Worker::Cpu(cpu) => cpu,
            Worker::Engine(engine) => engine.as_mut(),
        }
    }

    /// Speed of devices, or of models of them, at each operation: what they are, and GB/s.
    pub(super) fn bench(&mut self, bytes: usize, rounds: u32) -> Option<DeviceSpeeds> {
        let Worker::Engine(engine) = &mut self.worker else { return None };
        let speeds = engine::speeds(engine.dispatcher(), bytes, rounds);
        let in_gb = |(name, speed): (&'static str, Option<f64>)| Some((name, speed? / 1e9));
        let mut speeds: Vec<_> = speeds.into_iter().filter_map(in_gb).collect();
        let memory: Vec<u8> = (0..bytes).map(|i| ((i * 31) >> 3) as u8 | 1).collect();
        let mut facts = vec![PageFacts::default(); bytes / vmtax_pageops::PAGE];
        let mut times = Vec::new();
        for _ in 0..rounds {
            let start = Instant::now();
            engine.scan(&memory, &mut facts);
            times.push(start.elapsed().max(Duration::from_nanos(1)).as_secs_f64());
        }
        speeds.extend(median(&times).map(|seconds| ("scan+crc", bytes as f64 / seconds / 1e9)));
        let name = if self.models.is_empty() { "device" } else { "model" };
        Some((name, speeds))
    }

    /// What the CPU and the devices did.
    pub(super) fn describe(&self) -> String {
        match &self.worker {
            Worker::Cpu(cpu) => format!("cpu ({}){}", cpu.name(), self.why),
            Worker::Engine(engine) => engine.stats().describe(),
        }
    }
}

/// `device` or `model`, and GB/s by operation.
pub(super) type DeviceSpeeds = (&'static str, Vec<(&'static str, f64)>);
