//! What the flags of `vmtax lab run` say about a host and the report of its run.

use std::path::PathBuf;

use vmtax_analyse::By;
use vmtax_lab::paging::{FrameLayout, Frames};
use vmtax_lab::{HostSetup, PROTECTED_MODE};
use vmtax_machine::kernel::Kernel;
use vmtax_runs::lab::{DoneKernel, HostWork, fault, measure};
use vmtax_store::Claim;

use super::args::{Arrangement, LabRunArgs};
use crate::flags::{Color, ReadingArgs};
use crate::report::ReportArgs;

/// Has a host with this kernel do the work, and writes the run if it has a folder.
pub(super) fn work(
    args: &LabRunArgs,
    kernel: &Kernel,
    work: HostWork<'_>,
    claim: Option<Claim>,
) -> anyhow::Result<DoneKernel> {
    let host = args.host.host();
    let layout = args.layout.as_deref().map(FrameLayout::read).transpose();
    let layout = layout.map_err(|e| fault(e, None))?.map(Frames::Of);
    let frames = layout.or(args.scattered.map(Frames::Within));
    let setup = |cache: PathBuf, console: PathBuf| HostSetup {
        guest_kernel: args.guest_kernel.clone(),
        nested: args.nested,
        options: options(args),
        protected: args.protected,
        observer: args
            .observe
            .as_deref()
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
        brought: args.bring.clone(),
        processors: args.processors,
        memory_mib: args.memory,
        frames,
        fresh: args.fresh,
        profile: args.profile,
        debug_info: args.debug_info.clone(),
        annotate: args.annotate.clone(),
        limit: args.limit,
        ..HostSetup::plain(host, kernel.clone(), cache, console)
    };
    measure(host, setup, work, claim)
}

/// Those that were given, and the mode of KVM that protected VMs need.
fn options(args: &LabRunArgs) -> Vec<String> {
    let mode = args.protected.then(|| PROTECTED_MODE.to_owned());
    args.option.iter().cloned().chain(mode).collect()
}

/// The report of a run just made.
pub(super) fn shown(args: &LabRunArgs, source: String) -> ReportArgs {
    ReportArgs {
        inputs: vec![source.into()],
        event: Vec::new(),
        by: match args.by {
            Arrangement::Cause => Vec::new(),
            Arrangement::Level => vec![By::Level],
        },
        vm: Vec::new(),
        vcpu: Vec::new(),
        format: args.format,
        output: None,
        color: Color::Auto,
        reading: ReadingArgs::default(),
    }
}
