//! `vmtax mem restore` and `vmtax mem verify`.

use std::time::Instant;

use serde_json::json;
use vmtax_checkpoint::{Restore, fault, stream};
use vmtax_cli::exit::{Code, fail};
use vmtax_cli::progress::Progress;
use vmtax_pageops::PAGE;
use vmtax_pageops::checkpoint::Checkpoint;
use vmtax_report::numbers::size;

use super::flags::{RestoreArgs, VerifyArgs};

pub(super) fn run(args: &RestoreArgs) -> anyhow::Result<()> {
    let start = Instant::now();
    let checkpoint = stream::open(&args.checkpoint)?;
    let (stopped, force) = (args.stopped, args.force);
    let restore = Restore { checkpoint: &checkpoint, stopped, force };
    match (&args.machine.qmp, &args.machine.image) {
        (Some(socket), _) => restore.into_vm(socket)?,
        (None, Some(image)) => restore.into_image(image)?,
        (None, None) => return fail(Code::Usage, "name a VM with --qmp or an image with --image"),
    }
    report(args.format, "restored", &checkpoint, start)
}

pub(super) fn verify(args: &VerifyArgs) -> anyhow::Result<()> {
    let start = Instant::now();
    let checkpoint = stream::open(&args.checkpoint)?;
    let watch = Progress::bytes(checkpoint.work() * PAGE as u64);
    let done = checkpoint.verify(&mut |pages| watch.at(pages * PAGE as u64));
    done.map_err(|e| fault(&e, false))?;
    report(args.format, "verified", &checkpoint, start)
}

fn report(
    format: super::flags::OutputFormat,
    what: &str,
    checkpoint: &Checkpoint,
    start: Instant,
) -> anyhow::Result<()> {
    let seconds = start.elapsed().as_secs_f64();
    let memory: u64 = checkpoint.regions().map(|r| r.pages * PAGE as u64).sum();
    let parents = std::iter::successors(checkpoint.parent(), |p| p.parent()).count();
    let totals = checkpoint.totals();
    format.print(
        || {
            let name = checkpoint.path().display();
            let (bytes, memory) = (size(checkpoint.bytes()), size(memory));
            format!(
                "{name}: {what}: {memory} of memory from {bytes} and {parents} parents ({seconds:.2} s)\n"
            )
        },
        || {
            json!({
                "checkpoint": checkpoint.path().display().to_string(),
                "id": checkpoint.id().to_string(),
                "parents": parents,
                "memory_bytes": memory,
                "file_bytes": checkpoint.bytes(),
                "state_bytes": checkpoint.state_len(),
                "seconds": seconds,
                "pages": {
                    "raw": totals.raw, "compressed": totals.compressed, "deltas": totals.deltas,
                    "filled": totals.filled, "zero": totals.zero,
                },
            })
        },
    )
}
