//! VMs of a matrix: those that this computer runs, and those of emulated hosts.

use std::path::PathBuf;
use std::time::Duration;

use vmtax_cli::exit::{Code, fail};
use vmtax_lab::network::{NetworkHost, NetworkPlan, NetworkSetup, Passage, PlannedCell};
use vmtax_lab::{HostKind, VmLevel, VmPlan, VmSetup};
use vmtax_machine::Stop;
use vmtax_machine::kernel::Kernel;
use vmtax_machine::programs::FilesByPath;
use vmtax_runs::kernels;
use vmtax_runs::lab::fault as lab_fault;

use crate::category::MatrixCategory;
use crate::error::fault;
use crate::link::NetdevEnd;
use crate::linked::Linked;
use crate::matrix::{Matrix, Where};
use crate::place::Place;
use crate::system::{AgentSystem, host, host_options};
use crate::target::{Accel, Platform, Target};
use crate::vm::{MatrixVms, Purpose, emulator, files};
use crate::workload::{Workload, WorkloadProgram as WorkloadKind};

/// Wall-clock timeout of booting an emulated host and its guests.
const BOOT: Duration = Duration::from_secs(30 * 60);
/// How much longer than its own clock says an emulated host may take.
const SLOWER: u32 = 20;

/// A system that was to be launched. An error beside it ends the run.
pub(crate) enum Launch<S> {
    Ready(S),
    /// There is none: what the kernel lacks, or what went wrong. The run goes on without its cells.
    Failed(String),
}

/// What launches VMs, by what runs them.
pub(crate) struct Launcher {
    kinds: Vec<(Accel, LaunchKind)>,
    /// How the kernel's modules were made, if a file beside them says so.
    pub(crate) modules: Option<String>,
}

enum LaunchKind {
    Here(MatrixVms),
    Emulated(EmulatedVms),
    Inside(Box<Inside>),
}

/// An emulated host with QEMU in it. It runs from its first cell on.
struct Inside {
    setup: NetworkSetup,
    plan: NetworkPlan,
    host: Option<NetworkHost>,
}

/// What VMs of an emulated host have in common.
struct EmulatedVms {
    host: HostKind,
    target: Target,
    kernel: Kernel,
    files: FilesByPath,
    cache: PathBuf,
    fresh: bool,
    console: PathBuf,
    answer: Duration,
    /// Record what the machine executes during a job of each.
    profile: bool,
    annotate: Vec<String>,
    stop: Stop,
}

impl Launcher {
    /// Gathers what the VMs of a matrix need; nothing where it has none.
    pub(crate) fn new(
        matrix: &Matrix,
        console: PathBuf,
        (stop, fresh): (&Stop, bool),
        (profile, annotate): (bool, &[String]),
    ) -> anyhow::Result<Launcher> {
        let mut kinds = Vec::new();
        let mut modules = None;
        for accel in matrix.accels() {
            vmtax_machine::check(emulator(accel)).map_err(|e| fault(&e.into()))?;
            let workloads: Vec<&Workload> = matrix
                .workloads
                .iter()
                .filter(|workload| matrix.accel(workload) == accel)
                .collect();
            let target = &matrix.target;
            let mut modules_of_image = target.modules.iter();
            let kernel =
                kernels::named(accel.architecture(), &target.kernel, &mut modules_of_image)?;
            modules = kernel.modules_label();
            let kind = match host(accel) {
                None => {
                    let purpose = Purpose {
                        program: vmtax_lab::guest_program(),
                        workloads: &workloads,
                        console: &console,
                        accel,
                        stop,
                    };
                    LaunchKind::Here(
                        MatrixVms::new(target, kernel, &purpose).map_err(|e| fault(&e))?,
                    )
                }
                Some(host) if target.is_inside() => {
                    let setup = NetworkSetup {
                        host,
                        kernel,
                        cache: vmtax_runs::lab::cache_folder()?,
                        fresh,
                        profile,
                        annotate: annotate.to_vec(),
                        console: console.clone(),
                        limit: Duration::from_millis(matrix.limit_ms).saturating_mul(SLOWER),
                        stop: stop.clone(),
                    };
                    let plan = NetworkPlan { cells: planned(matrix), processors: 1 };
                    LaunchKind::Inside(Box::new(Inside { setup, plan, host: None }))
                }
                Some(host) => {
                    let cache = vmtax_runs::lab::cache_folder()?;
                    LaunchKind::Emulated(EmulatedVms {
                        host,
                        target: target.clone(),
                        kernel,
                        files: files(target, &workloads).map_err(|e| fault(&e))?,
                        cache,
                        fresh,
                        console: console.clone(),
                        answer: Duration::from_millis(matrix.limit_ms).saturating_mul(SLOWER),
                        profile,
                        annotate: annotate.to_vec(),
                        stop: stop.clone(),
                    })
                }
            };
            kinds.push((accel, kind));
        }
        Ok(Launcher { kinds, modules })
    }

    /// Boots a VM of a category, or restores it; fails where the kernel lacks something for this category.
    pub(crate) fn launch(
        &self,
        category: &MatrixCategory,
        platform: Platform,
    ) -> anyhow::Result<Launch<AgentSystem>> {
        match self.kinds.iter().find(|(accel, _)| *accel == platform.accel) {
            Some((_, LaunchKind::Here(vms))) => match platform.link {
                None => {
                    let console = vms.console().to_owned();
                    let end = NetdevEnd::default();
                    let mut vm = vms.boot(category, &end, console).map_err(|e| fault(&e))?;
                    vm.ready(&end).map_err(|e| fault(&e))?;
                    Ok(Launch::Ready(AgentSystem::Place(Place::Vm(Box::new(vm)))))
                }
                Some(link) => {
                    let linked = Linked::start(vms, category, link).map_err(|e| fault(&e))?;
                    Ok(Launch::Ready(AgentSystem::Linked(Box::new(linked))))
                }
            },
            Some((_, LaunchKind::Emulated(emulated))) => {
                let setup = emulated.setup(category, platform.cpus);
                let vm = match setup.start(&|_| {}) {
                    Ok(vm) => Box::new(vm),
                    Err(vmtax_lab::Error::Lacking { what }) => return Ok(Launch::Failed(what)),
                    Err(error) => return Err(lab_fault(error, None)),
                };
                Ok(Launch::Ready(AgentSystem::Emulated { vm, nested: setup.plan.levels.len() > 1 }))
            }
            Some((_, LaunchKind::Inside(_))) | None => fail(Code::Machine, "no VM can be launched"),
        }
    }

    /// Carries out a cell on an emulated host with QEMU in it; the inner error says why it was not measured. Notes are of the host.
    pub(crate) fn carry_out(
        &mut self,
        cell: &PlannedCell,
    ) -> anyhow::Result<(Result<Passage, String>, Vec<String>)> {
        let mut kinds = self.kinds.iter_mut().map(|(_, kind)| kind);
        let Some(LaunchKind::Inside(inside)) =
            kinds.find(|kind| matches!(kind, LaunchKind::Inside(_)))
        else {
            return fail(Code::Machine, "no VM can be launched");
        };
        let mut host = match inside.host.take() {
            Some(host) => host,
            None => NetworkHost::start(&inside.setup, &inside.plan, &|_| {})
                .map_err(|error| lab_fault(error, None))?,
        };
        let done = host.carry_out(cell);
        let notes = std::mem::take(&mut host.start.notes);
        Ok(match done {
            Ok(done) => {
                // A recorder records one cell, as addresses are those of its VMs.
                inside.host = (!inside.setup.profile).then_some(host);
                (done, notes)
            }
            // The next cell has another host.
            Err(error) => (Err(lab_fault(error, None).to_string()), notes),
        })
    }
}

/// All cells of a matrix with QEMU on an emulated host: one host is for all of them.
fn planned(matrix: &Matrix) -> Vec<PlannedCell> {
    let mut cells = Vec::new();
    for place in &matrix.categories {
        let Where::Vm(category) = place else { continue };
        cells.extend(matrix.workloads.iter().filter_map(|workload| match &workload.kind {
            WorkloadKind::Traffic(traffic) => Some(traffic.cell(category)),
            WorkloadKind::Adapter(_) | WorkloadKind::Own { .. } => None,
        }));
    }
    cells
}

impl EmulatedVms {
    fn setup(&self, category: &MatrixCategory, cpus: u32) -> VmSetup {
        VmSetup {
            plan: plan(self.host, &self.target, category, cpus),
            kernel: self.kernel.clone(),
            files: self.files.clone(),
            cache: self.cache.clone(),
            fresh: self.fresh,
            console: self.console.clone(),
            limit: BOOT,
            answer: self.answer,
            profile: self.profile,
            annotate: self.annotate.clone(),
            stop: self.stop.clone(),
        }
    }
}

/// A category's VM on an emulated host.
pub(crate) fn plan(
    host: HostKind,
    target: &Target,
    category: &MatrixCategory,
    cpus: u32,
) -> VmPlan {
    let text = |words: Vec<&str>| words.into_iter().map(str::to_owned).collect();
    let levels = category.guests().into_iter();
    VmPlan {
        host,
        options: host_options(category),
        levels: levels
            .map(|(words, modules, backing)| VmLevel {
                words,
                modules: text(modules),
                backing: Some(backing.to_owned()),
            })
            .collect(),
        memory_mib: target.memory,
        processors: target.processors,
        cpus,
        pmu: None,
    }
}
