//! `vmtax lab layout`.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use vmtax_cli::exit::{Code, fail};
use vmtax_cli::output;
use vmtax_lab::paging::FrameLayout;
use vmtax_machine::maps::Mapping;

use super::args::LayoutArgs;

pub(crate) fn run(args: &LayoutArgs) -> anyhow::Result<()> {
    let pid = args.pid;
    let cannot = |what: &str, error: &io::Error| {
        fail(Code::Input, format!("process {pid}: cannot read its {what}: {error}"))
    };
    let mut mappings = match Mapping::of_process(pid) {
        Ok(all) => all,
        Err(error) => return cannot("mappings", &error),
    };
    mappings.retain(|mapping| mapping.writable && !mapping.shared && mapping.inode == 0);
    mappings.sort_by_key(|mapping| std::cmp::Reverse(mapping.bytes()));
    let pagemap = match File::open(format!("/proc/{pid}/pagemap")) {
        Ok(file) => file,
        Err(error) => return cannot("pagemap", &error),
    };
    let (mut frames, mut taken) = (Vec::new(), HashSet::new());
    for mapping in &mappings {
        if let Err(error) = add((&mut frames, &mut taken), mapping, &pagemap) {
            return cannot("pagemap", &error);
        }
    }
    match frames.as_slice() {
        [] => fail(Code::Data, format!("process {pid}: has no private memory")),
        // What the kernel shows to those who may not see them.
        all if all.iter().all(|frame| *frame == 0) => {
            fail(Code::Input, format!("process {pid}: the kernel shows its frames to root alone"))
        }
        all if all.iter().any(|frame| *frame >= FrameLayout::BEYOND) => {
            let room = FrameLayout::BEYOND >> 18;
            let message = format!(
                "process {pid}: has frames beyond {room} GiB, which no guest of the lab has"
            );
            fail(Code::Data, message)
        }
        all => output::write(args.output.as_deref(), |out| {
            Ok(out.write_all(FrameLayout::text(all).as_bytes())?)
        }),
    }
}

/// Adds the frames of a mapping (Documentation/admin-guide/mm/pagemap.rst), each once: the page of zeros and merged pages are mapped often.
fn add(
    (frames, taken): (&mut Vec<u64>, &mut HashSet<u64>),
    mapping: &Mapping,
    pagemap: &File,
) -> io::Result<()> {
    const PRESENT: u64 = 1 << 63;
    const FRAME: u64 = (1 << 55) - 1;
    let mut part = vec![0; 1 << 16];
    let (mut at, end) = (mapping.range.start / 4096 * 8, mapping.range.end / 4096 * 8);
    while at < end && frames.len() < FrameLayout::MOST {
        let length = usize::try_from(end - at).map_or(part.len(), |left| left.min(part.len()));
        pagemap.read_exact_at(&mut part[..length], at)?;
        let (entries, _) = part[..length].as_chunks::<8>();
        let entries = entries.iter().map(|entry| u64::from_le_bytes(*entry));
        let present = entries.filter(|entry| entry & PRESENT != 0).map(|entry| entry & FRAME);
        let free = FrameLayout::MOST - frames.len();
        // Frames that are not shown are all 0.
        frames.extend(present.filter(|frame| *frame == 0 || taken.insert(*frame)).take(free));
        at += length as u64;
    }
    Ok(())
}
