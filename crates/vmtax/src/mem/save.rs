//! `vmtax mem save`.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

use serde_json::json;
use vmtax_pageops::PAGE;
use vmtax_pageops::checkpoint::{Checkpoint, Id, Options, Summary, Writer, children};
use vmtax_pageops::memory::{self, Map};

use super::flags::SaveArgs;
use super::vm::{Pause, Ram, Vm};
use super::watch::{Watch, catch_signals, stopping};
use super::{fault, print, size};
use crate::exit::{Code, Fault, fail};
use crate::output::is_same_file;

/// Memory given to the writer at a time: what is between two looks at the signals.
const PIECE: u64 = 8 << 20;

/// Memory copied at a time: what a core's second cache holds.
const COPY: usize = 256 << 10;

/// What a saved checkpoint came to.
struct Saved {
    summary: Summary,
    id: Id,
    /// Bytes of memory, and of what of it is no hole.
    memory: u64,
    data: u64,
    seconds: f64,
    accel: String,
}

pub(super) fn run(args: &SaveArgs) -> anyhow::Result<()> {
    check_names(args)?;
    catch_signals()?;
    let start = Instant::now();
    let mut saved = match (&args.machine.qmp, &args.machine.image) {
        (Some(socket), _) => {
            let mut vm = Vm::connect(socket)?;
            let ram = vm.ram(false)?;
            check_memory(args, &ram)?;
            let mut pause = Pause::new(&mut vm, args.stopped)?;
            let state = pause.vm().save_state()?;
            let saved = save(args, &ram, &state)?;
            pause.end()?;
            saved
        }
        (None, Some(image)) => save(args, &[open_image(image)?], &[])?,
        (None, None) => return fail(Code::Usage, "name a VM with --qmp or an image with --image"),
    };
    saved.seconds = start.elapsed().as_secs_f64();
    print(args.work.format, || text(args, &saved), || as_json(args, &saved))
}

/// The new checkpoint must not take the place of what it is made from, nor of one that others are based on. Its parents are
/// looked at by `Writer::create`.
fn check_names(args: &SaveArgs) -> anyhow::Result<()> {
    let name = args.output.display();
    for (flag, input) in [("--parent", &args.parent), ("--image", &args.machine.image)] {
        if input.as_ref().is_some_and(|input| is_same_file(input, &args.output)) {
            return fail(
                Code::Usage,
                format!("{name}: is given as {flag} too; name another output"),
            );
        }
    }
    // An output that is not there, or that is no checkpoint, has no children.
    match children(&args.output).unwrap_or_default().as_slice() {
        [] => Ok(()),
        [child, ..] => fail(
            Code::Usage,
            format!(
                "{name}: {} is based on it; name another output, or remove that one first",
                child.display()
            ),
        ),
    }
}

/// Nor that of the VM's memory.
fn check_memory(args: &SaveArgs, ram: &[Ram]) -> anyhow::Result<()> {
    let Ok(output) = args.output.metadata() else { return Ok(()) };
    for block in ram {
        let memory = block.file.metadata()?;
        if (memory.dev(), memory.ino()) == (output.dev(), output.ino()) {
            let name = args.output.display();
            return fail(
                Code::Usage,
                format!("{name}: is the VM's memory ({}); name another output", block.name),
            );
        }
    }
    Ok(())
}

fn open_image(path: &Path) -> anyhow::Result<Ram> {
    let name = path.display();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) => {
            return fail(Code::Input, format!("{name}: cannot be opened: {}", error.kind()));
        }
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return fail(Code::Input, format!("{name}: is not a file; an image of memory is needed"));
    }
    if metadata.len() == 0 || !metadata.len().is_multiple_of(PAGE as u64) {
        let what = format!("{name}: has {} bytes, which is no number of pages", metadata.len());
        return fail(Code::Data, what);
    }
    Ok(Ram { name: "image".to_owned(), bytes: metadata.len(), file })
}

fn save(args: &SaveArgs, ram: &[Ram], state: &[u8]) -> anyhow::Result<Saved> {
    let parent = match &args.parent {
        Some(path) => Some(Checkpoint::open(path).map_err(|e| fault(&e, false))?),
        None => None,
    };
    let mut accel = args.work.accel.open()?;
    let options = Options { zstd: args.zstd, parent };
    let mut writer =
        Writer::create(&args.output, options, accel.scanner()).map_err(|e| fault(&e, true))?;
    let memory: u64 = ram.iter().map(|r| r.bytes).sum();
    let mut extents = Vec::new();
    for block in ram {
        extents.push(memory::extents(&block.file, block.bytes)?);
    }
    let data = extents.iter().flatten().map(|e| e.end - e.start).sum();
    let from = [&args.machine.qmp, &args.machine.image].into_iter().flatten().next();
    let from = from.map(|path| path.display().to_string()).unwrap_or_default();
    let watch = Watch::new(data);
    let mut done = 0;
    for (block, extents) in ram.iter().zip(&extents) {
        writer.region(&block.name, block.bytes / PAGE as u64).map_err(|e| fault(&e, true))?;
        let mut source = Source::new(&block.file, block.bytes, args.parent.is_some())?;
        for extent in extents {
            let mut at = extent.start;
            while at < extent.end {
                stopping()?;
                let end = extent.end.min(at + PIECE);
                source.give(at..end, &mut writer, &from)?;
                done += end - at;
                watch.at(done);
                at = end;
            }
        }
    }
    let finished = writer.finish(&mut &state[..], b"").map_err(|e| fault(&e, true))?;
    let (summary, id) = (finished.summary(), finished.id());
    finished.publish().map_err(|e| fault(&e, true))?;
    Ok(Saved { summary, id, memory, data, seconds: 0.0, accel: accel.describe() })
}

/// Where pages come from: the memory itself, or a copy where they are looked at more than once. The VM is stopped,
/// and an image is nobody's to write; a page that changes all the same fails its checksum when it is read again.
enum Source<'a> {
    Mapped(Map),
    Copied(&'a File, Vec<u8>),
}

impl<'a> Source<'a> {
    fn new(file: &'a File, bytes: u64, copied: bool) -> anyhow::Result<Source<'a>> {
        Ok(match copied {
            true => Source::Copied(file, vec![0; COPY]),
            false => Source::Mapped(Map::new(file, bytes as usize)?),
        })
    }

    /// Gives pages to the writer; `from` is what they are of, should they be gone.
    fn give(
        &mut self,
        range: Range<u64>,
        writer: &mut Writer<'_>,
        from: &str,
    ) -> anyhow::Result<()> {
        let gone = |error: std::io::Error| {
            let what = "memory cannot be read; was it made shorter, or does its disk fail?";
            Fault::new(Code::Input, format!("{from}: {what}")).answered(&error)
        };
        let first = range.start / PAGE as u64;
        match self {
            Source::Mapped(map) => {
                let range = range.start as usize..range.end as usize;
                map.populate(range.clone()).map_err(gone)?;
                let done = map.with(range.clone(), |pages| writer.pages(first, pages));
                map.forget(range);
                done.map_err(|e| fault(&e, true))
            }
            Source::Copied(file, buffer) => {
                let mut at = range.start;
                while at < range.end {
                    let step = (range.end - at).min(buffer.len() as u64) as usize;
                    file.read_exact_at(&mut buffer[..step], at).map_err(gone)?;
                    let done = writer.pages(at / PAGE as u64, &buffer[..step]);
                    done.map_err(|e| fault(&e, true))?;
                    at += step as u64;
                }
                Ok(())
            }
        }
    }
}

fn text(args: &SaveArgs, saved: &Saved) -> String {
    let s = &saved.summary;
    let mut parts = vec![format!("{} as they are", s.raw)];
    for (count, what) in [
        (s.compressed, "compressed"),
        (s.deltas, "as deltas"),
        (s.filled, "of one repeated word"),
        (s.zero, "zero"),
        (s.unchanged, "unchanged"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    format!(
        "{}: {} of memory, {} of it in use, in {} ({:.2} s, {}/s)\npages: {}\nby: {}\nid: {}\n",
        args.output.display(),
        size(saved.memory),
        size(saved.data),
        size(s.bytes),
        saved.seconds,
        size((saved.data as f64 / saved.seconds.max(1e-9)) as u64),
        parts.join(", "),
        saved.accel,
        saved.id,
    )
}

fn as_json(args: &SaveArgs, saved: &Saved) -> serde_json::Value {
    let s = &saved.summary;
    json!({
        "checkpoint": args.output.display().to_string(),
        "id": saved.id.to_string(),
        "memory_bytes": saved.memory,
        "data_bytes": saved.data,
        "file_bytes": s.bytes,
        "seconds": saved.seconds,
        "accel": saved.accel,
        "pages": {
            "raw": s.raw, "compressed": s.compressed, "deltas": s.deltas, "filled": s.filled,
            "zero": s.zero, "unchanged": s.unchanged,
        },
    })
}
