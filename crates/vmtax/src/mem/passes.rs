//! A VM's memory, given to the writer of a checkpoint: once while it stands still, or in passes while it runs.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use vmtax_cli::exit::{Code, Fault};
use vmtax_cli::progress::Progress;
use vmtax_machine::vm::Ram;
use vmtax_pageops::PAGE;
use vmtax_pageops::checkpoint::{Latest, Writer};
use vmtax_pageops::memory::{self, Map};

use super::fault;

/// Memory looked at between two looks at the signals.
const PIECE: u64 = 8 << 20;
/// Passes over a running VM, the first included.
const PASSES: usize = 12;
/// What differs is written in less time than the pause takes anyhow.
const FEW: u64 = 1024;
/// Threads that look for what differs while the VM stands still: its own processors are idle then.
const THREADS: usize = 8;

/// Ends the work by an error.
pub(super) type Look<'a> = dyn FnMut() -> anyhow::Result<()> + 'a;

/// One pass over the memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    /// Pages that were written.
    pub(super) pages: u64,
    /// Bytes of memory that is no hole.
    pub(super) data: u64,
    /// Looking for what differs.
    pub(super) search: Duration,
    /// All of it.
    pub(super) wall: Duration,
}

/// Blocks of memory.
pub(super) struct Memory<'a> {
    /// What they are of, for errors.
    from: &'a Path,
    blocks: Vec<Block<'a>>,
    /// Pages stay mapped, for the next pass.
    keep: bool,
}

struct Block<'a> {
    name: &'a str,
    bytes: u64,
    file: &'a File,
    map: Map,
}

/// Parts of one block.
struct Layout {
    /// What is no hole, in pieces.
    pieces: Vec<Range<u64>>,
    /// Holes, in pages.
    holes: Vec<Range<u64>>,
    data: u64,
}

impl<'a> Memory<'a> {
    /// Of a VM or an image named `from`, which runs on if it is `live`.
    pub(super) fn new(from: &'a Path, ram: &'a [Ram], live: bool) -> anyhow::Result<Memory<'a>> {
        let block = |ram: &'a Ram| -> io::Result<Block<'a>> {
            let map = Map::new(&ram.file, ram.bytes as usize)?;
            Ok(Block { name: &ram.name, bytes: ram.bytes, file: &ram.file, map })
        };
        let blocks = ram.iter().map(block).collect::<io::Result<_>>()?;
        Ok(Memory { from, blocks, keep: live })
    }

    /// Its length.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.bytes).sum()
    }

    /// Gives the writer all of it but holes.
    pub(super) fn write(
        &self,
        writer: &mut Writer<'_>,
        look: &mut Look<'_>,
    ) -> anyhow::Result<Pass> {
        let start = Instant::now();
        let layouts = self.layouts()?;
        let data = layouts.iter().map(|l| l.data).sum();
        let watch = Progress::bytes(data);
        let mut done = 0;
        for (block, layout) in self.blocks.iter().zip(&layouts) {
            let pages = block.bytes / PAGE as u64;
            writer.region(block.name, pages).map_err(|e| fault(&e, true))?;
            for piece in &layout.pieces {
                look()?;
                self.look_at(block, piece, |pages| writer.pages(piece.start / PAGE as u64, pages))?
                    .map_err(|e| fault(&e, true))?;
                done += piece.end - piece.start;
                watch.at(done);
            }
        }
        let pages = data / PAGE as u64;
        Ok(Pass { pages, data, search: Duration::ZERO, wall: start.elapsed() })
    }

    /// Passes over a VM that runs, until little differs or further passes would not help.
    pub(super) fn write_live(
        &self,
        writer: &mut Writer<'_>,
        look: &mut Look<'_>,
    ) -> anyhow::Result<Vec<Pass>> {
        let mut passes = vec![self.write(writer, look)?];
        while passes.len() < PASSES {
            let pass = self.write_changes(writer, 1, look)?;
            let before = passes.last().map_or(0, |pass| pass.pages);
            passes.push(pass);
            // It is written to as fast as it is saved.
            if pass.pages <= FEW || pass.pages * 4 > before * 3 {
                break;
            }
        }
        Ok(passes)
    }

    /// The last pass, over a VM that stands still.
    pub(super) fn write_rest(
        &self,
        writer: &mut Writer<'_>,
        look: &mut Look<'_>,
    ) -> anyhow::Result<Pass> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        self.write_changes(writer, threads, look)
    }

    /// Gives the writer what is not as it was last written.
    fn write_changes(
        &self,
        writer: &mut Writer<'_>,
        threads: usize,
        look: &mut Look<'_>,
    ) -> anyhow::Result<Pass> {
        let start = Instant::now();
        let layouts = self.layouts()?;
        writer.begin_layer().map_err(|e| fault(&e, true))?;
        let (mut pages, mut written) = (0, Duration::ZERO);
        for (region, (block, layout)) in self.blocks.iter().zip(&layouts).enumerate() {
            let Some(latest) = writer.latest() else { continue };
            let changes = self.changes(region, block, layout, latest, threads, look)?;
            let began = Instant::now();
            writer.region_again(region).map_err(|e| fault(&e, true))?;
            for change in changes {
                look()?;
                pages += change.pages.end - change.pages.start;
                self.write_change(block, &change, writer)?;
            }
            written += began.elapsed();
        }
        let data = layouts.iter().map(|l| l.data).sum();
        let wall = start.elapsed();
        Ok(Pass { pages, data, search: wall.saturating_sub(written), wall })
    }

    fn write_change(
        &self,
        block: &Block<'_>,
        change: &Change,
        writer: &mut Writer<'_>,
    ) -> anyhow::Result<()> {
        static ZEROS: [u8; 16 * PAGE] = [0; 16 * PAGE];
        let page = PAGE as u64;
        if !change.is_hole {
            let bytes = change.pages.start * page..change.pages.end * page;
            let written = self.look_at(block, &bytes, |b| writer.pages(change.pages.start, b))?;
            return written.map_err(|e| fault(&e, true));
        }
        let mut at = change.pages.start;
        while at < change.pages.end {
            let count = (change.pages.end - at).min(16);
            writer.pages(at, &ZEROS[..count as usize * PAGE]).map_err(|e| fault(&e, true))?;
            at += count;
        }
        Ok(())
    }

    /// Pages of a block that are not as they were last written, ascending.
    fn changes(
        &self,
        region: usize,
        block: &Block<'_>,
        layout: &Layout,
        latest: &Latest,
        threads: usize,
        look: &mut Look<'_>,
    ) -> anyhow::Result<Vec<Change>> {
        look()?;
        let (next, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
        let search = |look: &mut Look<'_>| -> anyhow::Result<Vec<Range<u64>>> {
            let mut found = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(piece) = layout.pieces.get(at) else { break };
                look()?;
                let first = piece.start / PAGE as u64;
                self.look_at(block, piece, |pages| {
                    latest.differing(region, first, pages, &mut found);
                })?;
            }
            Ok(found)
        };
        let parts = std::thread::scope(|scope| {
            let search = &search;
            let others: Vec<_> =
                (1..threads).map(|_| scope.spawn(move || search(&mut || Ok(())))).collect();
            let own = search(look);
            if own.is_err() {
                ended.store(true, Ordering::Relaxed);
            }
            let joined = others.into_iter().map(|other| match other.join() {
                Ok(found) => found,
                Err(_) => Err(anyhow::anyhow!("a thread that compares memory ended")),
            });
            joined.chain([own]).collect::<anyhow::Result<Vec<_>>>()
        })?;
        let mut lost = Vec::new();
        for hole in &layout.holes {
            latest.lost(region, hole.clone(), &mut lost);
        }
        let changed = parts.into_iter().flatten().map(|pages| Change { pages, is_hole: false });
        let lost = lost.into_iter().map(|pages| Change { pages, is_hole: true });
        let mut changes: Vec<Change> = changed.chain(lost).collect();
        changes.sort_by_key(|change| change.pages.start);
        Ok(changes)
    }

    fn layouts(&self) -> io::Result<Vec<Layout>> {
        self.blocks.iter().map(Block::layout).collect()
    }

    /// Looks at bytes of a block.
    fn look_at<R>(
        &self,
        block: &Block<'_>,
        bytes: &Range<u64>,
        look: impl FnOnce(&[u8]) -> R,
    ) -> anyhow::Result<R> {
        let range = bytes.start as usize..bytes.end as usize;
        block.map.populate(range.clone()).map_err(|error| {
            let what = "memory cannot be read; was it made shorter, or does its disk fail?";
            Fault::new(Code::Input, format!("{}: {what}", self.from.display())).answered(&error)
        })?;
        let result = block.map.with(range.clone(), look);
        if !self.keep {
            block.map.forget(range);
        }
        Ok(result)
    }
}

/// Pages that are not as they were last written.
struct Change {
    pages: Range<u64>,
    /// They were given back to the system since, and are zero.
    is_hole: bool,
}

impl Block<'_> {
    fn layout(&self) -> io::Result<Layout> {
        let page = PAGE as u64;
        let (mut pieces, mut holes, mut data, mut last) = (Vec::new(), Vec::new(), 0, 0);
        for extent in memory::extents(self.file, self.bytes)? {
            if last < extent.start {
                holes.push(last / page..extent.start / page);
            }
            let mut at = extent.start;
            while at < extent.end {
                let end = extent.end.min(at + PIECE);
                pieces.push(at..end);
                at = end;
            }
            data += extent.end - extent.start;
            last = extent.end;
        }
        if last < self.bytes {
            holes.push(last / page..self.bytes / page);
        }
        Ok(Layout { pieces, holes, data })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use vmtax_pageops::Cpu;
    use vmtax_pageops::checkpoint::{Checkpoint, Options};

    use super::*;

    /// What is written, made a hole, or put into a hole between two passes is in the checkpoint as it was in the end.
    #[test]
    fn a_further_pass_finds_all_that_differs() {
        const PAGES: u64 = 6000;
        let dir = tempfile::tempdir().unwrap();
        let page = |age: u8| [age; PAGE].map(|b| b ^ 0x5a);
        let ram = ["a", "b"].map(|name| {
            let file = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile()).unwrap();
            file.set_len(PAGES * PAGE as u64).unwrap();
            for at in (0..PAGES).filter(|at| at % 1000 < 600) {
                let mut bytes = page(at as u8);
                bytes[..8].copy_from_slice(&at.to_le_bytes());
                file.write_all_at(&bytes, at * PAGE as u64).unwrap();
            }
            Ram { name: name.to_owned(), bytes: PAGES * PAGE as u64, file }
        });
        let memory = Memory::new(dir.path(), &ram, true).unwrap();
        let mut cpu = Cpu::best();
        let path = dir.path().join("x.ckpt");
        let options = Options { live: true, ..Options::default() };
        let mut writer = Writer::create(&path, options, &mut cpu).unwrap();
        let mut look = || Ok(());
        let passes = memory.write_live(&mut writer, &mut look).unwrap();
        let counts: Vec<u64> = passes.iter().map(|pass| pass.pages).collect();
        assert_eq!(counts, [7200, 0]);

        let put =
            |at: u64, age: u8| ram[1].file.write_all_at(&page(age), at * PAGE as u64).unwrap();
        put(0, 1);
        put(999, 2);
        memory::punch(&ram[1].file, 2000 * PAGE as u64..2100 * PAGE as u64).unwrap();
        put(2050, 3);
        put(5999, 4);
        // Written, and as it was.
        let mut same = page(7);
        same[..8].copy_from_slice(&7u64.to_le_bytes());
        ram[0].file.write_all_at(&same, 7 * PAGE as u64).unwrap();
        assert_eq!(memory.write_rest(&mut writer, &mut look).unwrap().pages, 103);
        let finished = writer.finish(&mut io::empty(), b"").unwrap();
        assert_eq!(finished.summary().zero, 99);
        finished.publish().unwrap();

        let checkpoint = Checkpoint::open(&path).unwrap();
        let (mut saved, mut found) = (vec![0; PAGE * 100], vec![0; PAGE * 100]);
        for (region, ram) in ram.iter().enumerate() {
            for first in (0..PAGES).step_by(100) {
                checkpoint.read(region, first, &mut saved).unwrap();
                ram.file.read_exact_at(&mut found, first * PAGE as u64).unwrap();
                assert!(saved == found, "region {region}, pages from {first}");
            }
        }
    }

    /// An error ends all threads, and is the answer.
    #[test]
    fn a_pass_that_is_interrupted_ends() {
        let dir = tempfile::tempdir().unwrap();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 4 * PAGE], 0).unwrap();
        let ram = [Ram { name: "a".to_owned(), bytes: 4 * PAGE as u64, file }];
        let memory = Memory::new(dir.path(), &ram, true).unwrap();
        let mut cpu = Cpu::best();
        let options = Options { live: true, ..Options::default() };
        let mut writer = Writer::create(&dir.path().join("x"), options, &mut cpu).unwrap();
        memory.write(&mut writer, &mut || Ok(())).unwrap();
        let ended = memory.write_rest(&mut writer, &mut || anyhow::bail!("enough"));
        assert_eq!(ended.unwrap_err().to_string(), "enough");
        // The file becomes shorter than it was.
        ram[0].file.set_len(0).unwrap();
        let error = memory.look_at(&memory.blocks[0], &(0..PAGE as u64), |_| ()).unwrap_err();
        assert!(error.to_string().contains("memory cannot be read"), "{error}");
    }
}
