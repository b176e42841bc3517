//! `--accel`: who does the work on pages.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vmtax_analyse::samples::median;
use vmtax_cli::exit::{Code, fail};
use vmtax_pageops::checkpoint::Accelerate;
use vmtax_pageops::device::Portal;
use vmtax_pageops::device::idxd::{self, Idxd, Roots};
use vmtax_pageops::device::model::{self, Model};
use vmtax_pageops::engine::PageEngine;
use vmtax_pageops::engine::{self, Config, Dispatcher, Policy};
use vmtax_pageops::{Cpu, PageFacts};

/// As the user says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Accel {
    /// DSA queues that can be used, together with the CPU; the CPU alone without any.
    Auto,
    Cpu,
    /// Four devices in software.
    Model,
    /// These queues.
    Dsa(Vec<PathBuf>),
}

impl Accel {
    pub(super) fn parse(text: &str) -> Result<Accel, String> {
        match text {
            "auto" => return Ok(Accel::Auto),
            "cpu" => return Ok(Accel::Cpu),
            "model" => return Ok(Accel::Model),
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
            None => Ok(Accel::Dsa(paths)),
        }
    }

    /// What does the work.
    pub(super) fn open(&self) -> anyhow::Result<Opened> {
        let roots = Roots::default();
        let cpu = |why: &str| Opened {
            worker: Worker::Cpu(Cpu::best()),
            why: why.to_owned(),
            _models: Vec::new(),
        };
        match self {
            Accel::Cpu => Ok(cpu("")),
            Accel::Auto => {
                let found = idxd::discover(&roots).unwrap_or_default();
                let usable = found.into_iter().filter(|q| q.problem.is_none());
                let portals: Vec<Box<dyn Portal>> = usable
                    .filter_map(|q| Idxd::open(&roots, q).ok())
                    .map(|p| Box::new(p) as Box<dyn Portal>)
                    .collect();
                if portals.is_empty() {
                    return Ok(cpu("; no DSA queue can be used here"));
                }
                Ok(Opened::engine(Policy::Auto, portals, Vec::new()))
            }
            Accel::Model => {
                let config =
                    |i| model::Config { name: format!("model{i}"), ..model::Config::default() };
                let models: Vec<Model> = (0..4).map(|i| Model::new(config(i))).collect();
                let portal = |m: &Model| Ok(Box::new(m.portal()?) as Box<dyn Portal>);
                let portals = models.iter().map(portal).collect::<anyhow::Result<_>>()?;
                Ok(Opened::engine(Policy::Device, portals, models))
            }
            Accel::Dsa(paths) => {
                let open = |path: &PathBuf| open_queue(&roots, path);
                let portals = paths.iter().map(open).collect::<anyhow::Result<_>>()?;
                Ok(Opened::engine(Policy::Device, portals, Vec::new()))
            }
        }
    }
}

fn open_queue(roots: &Roots, path: &Path) -> anyhow::Result<Box<dyn Portal>> {
    let opened = idxd::find(roots, path).and_then(|queue| Idxd::open(roots, queue));
    match opened {
        Ok(portal) => Ok(Box::new(portal)),
        Err(problem) => fail(Code::Input, format!("--accel dsa:{}: {problem}", path.display())),
    }
}

/// Whoever does the work, ready.
pub(super) struct Opened {
    worker: Worker,
    /// Added to the description.
    why: String,
    /// Devices in software; they end after the engine that uses them.
    _models: Vec<Model>,
}

enum Worker {
    Cpu(Cpu),
    Engine(Box<PageEngine>),
}

impl Opened {
    fn engine(policy: Policy, portals: Vec<Box<dyn Portal>>, models: Vec<Model>) -> Opened {
        let config = Config { policy, ..Config::default() };
        let engine = PageEngine::new(Dispatcher::new(config, portals));
        Opened { worker: Worker::Engine(Box::new(engine)), why: String::new(), _models: models }
    }

    pub(super) fn scanner(&mut self) -> &mut dyn Accelerate {
        match &mut self.worker {
            Worker::Cpu(cpu) => cpu,
            Worker::Engine(engine) => engine.as_mut(),
        }
    }

    /// What devices make of the operations: their name, and GB/s of each.
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
        Some(("device".to_owned(), speeds))
    }

    /// Who did what, and why there.
    pub(super) fn describe(&self) -> String {
        match &self.worker {
            Worker::Cpu(cpu) => format!("cpu ({}){}", cpu.name(), self.why),
            Worker::Engine(engine) => engine.stats().describe(),
        }
    }
}

/// Name of a device, and GB/s by operation.
pub(super) type DeviceSpeeds = (String, Vec<(&'static str, f64)>);
