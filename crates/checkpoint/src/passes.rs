//! Passes a VM's memory to the writer of a checkpoint: once while it is paused, or in several passes while it runs.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use vmtax_cli::exit::{Code, CodedError};
use vmtax_cli::progress::Progress;
use vmtax_machine::vm::Ram;
use vmtax_pageops::PAGE;
use vmtax_pageops::checkpoint::{CheckpointWriter, Latest};
use vmtax_pageops::process_memory::{self, MappedFile};

use crate::faults::fault;

/// Bytes processed between two checks for signals.
const PIECE: u64 = 8 << 20;
/// Bytes compared at a time, and copied if they differ, while they are in the L2 cache.
const CHUNK: usize = 64 * PAGE;
/// Most bytes of copies of changed pages kept until they are written. The pages that a VM writes during a pass fit, unless it writes
/// gigabytes per second.
pub(crate) const KEPT: usize = 256 << 20;
/// Time between two checks for signals while threads search.
const LOOK: Duration = Duration::from_millis(20);
/// Most passes over a running VM, including the first.
const PASSES: usize = 12;
/// So few changed pages are written in less time than the minimum pause.
const FEW: u64 = 1024;
/// Most threads of the search during the pause, when the VM's processors are idle.
const THREADS: usize = 8;

/// Called often; an error ends the work.
pub(crate) type Look<'a> = dyn FnMut() -> anyhow::Result<()> + 'a;

/// One pass over the memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryPass {
    /// Pages that were written.
    pub pages: u64,
    /// Bytes that are no hole.
    pub data: u64,
    /// Time of the search for changes.
    pub search: Duration,
    /// Time of the pass.
    pub wall: Duration,
    /// All changes were copied during the search, so they can be written after the pause.
    pub is_copied: bool,
}

impl MemoryPass {
    /// The pause that a pass like this one would need.
    pub(crate) fn predicts(&self) -> Duration {
        if self.is_copied { self.search } else { self.wall }
    }
}

pub(crate) struct MemoryBlocks<'a> {
    /// Their VM or image, for errors.
    from: &'a Path,
    blocks: Vec<MemoryBlock<'a>>,
    /// Keep pages mapped for the next pass.
    keep: bool,
    /// Buffers of the search threads. A used buffer is already in RAM, which saves time in the pause.
    spare: Mutex<Vec<Vec<u8>>>,
}

struct MemoryBlock<'a> {
    name: &'a str,
    bytes: u64,
    file: &'a File,
    /// Where in the file it begins.
    offset: u64,
    map: MappedFile,
}

/// Parts of one block.
struct BlockLayout {
    /// Data, in pieces.
    pieces: Vec<Range<u64>>,
    holes: Vec<Range<u64>>,
    data: u64,
}

impl<'a> MemoryBlocks<'a> {
    /// The memory of a VM or an image named `from`; `live`: the VM keeps running.
    pub(crate) fn new(
        from: &'a Path,
        ram: &'a [Ram],
        live: bool,
    ) -> anyhow::Result<MemoryBlocks<'a>> {
        let block = |ram: &'a Ram| -> io::Result<MemoryBlock<'a>> {
            let (bytes, offset) = (ram.bytes, ram.offset);
            let map = MappedFile::new(&ram.file, offset..offset + bytes)?;
            Ok(MemoryBlock { name: &ram.name, bytes, file: &ram.file, offset, map })
        };
        let blocks = ram.iter().map(block).collect::<io::Result<_>>()?;
        Ok(MemoryBlocks { from, blocks, keep: live, spare: Mutex::default() })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.bytes).sum()
    }

    /// Passes all of it to the writer, without holes.
    pub(crate) fn write(
        &self,
        writer: &mut CheckpointWriter<'_>,
        look: &mut Look<'_>,
    ) -> anyhow::Result<MemoryPass> {
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
        let wall = start.elapsed();
        Ok(MemoryPass { pages, data, search: Duration::ZERO, wall, is_copied: false })
    }

    /// Passes over a running VM, until few pages change, further passes would not help, or the predicted pause is short enough.
    pub(crate) fn write_live(
        &self,
        writer: &mut CheckpointWriter<'_>,
        max_pause: Option<Duration>,
        look: &mut Look<'_>,
    ) -> anyhow::Result<Vec<MemoryPass>> {
        let mut passes = vec![self.write(writer, look)?];
        // The VM needs processors too.
        let threads = (processors() / 2).max(1);
        while passes.len() < PASSES {
            let pass = self.write_changes(writer, threads, look)?;
            let before = passes.last().map_or(0, |pass| pass.pages);
            passes.push(pass);
            let short = max_pause.is_some_and(|max| pass.predicts() <= max);
            // Pages change as fast as they are saved.
            if short || pass.pages <= FEW || pass.pages * 4 > before * 3 {
                break;
            }
        }
        Ok(passes)
    }

    /// Passes the changes since the last write to the writer.
    fn write_changes(
        &self,
        writer: &mut CheckpointWriter<'_>,
        threads: usize,
        look: &mut Look<'_>,
    ) -> anyhow::Result<MemoryPass> {
        let found = match writer.latest() {
            Some(latest) => {
                std::thread::scope(|scope| self.search(scope, latest, threads, KEPT)?.finish(look))?
            }
            None => FoundChanges::default(),
        };
        self.write_found(writer, found, look)
    }

    /// Starts the search for changes since the last write, on this number of threads, which share `kept` bytes for copies.
    pub(crate) fn search<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        latest: &'env Latest,
        threads: usize,
        kept: usize,
    ) -> anyhow::Result<ChangeSearch<'scope>> {
        let began = Instant::now();
        let layouts = self.layouts()?;
        let mut changes = Vec::new();
        let mut lost = Vec::new();
        for (region, layout) in layouts.iter().enumerate() {
            for hole in &layout.holes {
                latest.lost(region, hole.clone(), &mut lost);
            }
            changes.extend(lost.drain(..).map(|pages| PagesChange {
                region,
                pages,
                bytes: ChangeBytes::Hole,
            }));
        }
        let data = layouts.iter().map(|layout| layout.data).sum();
        let of_region = |(region, layout): (usize, BlockLayout)| {
            layout.pieces.into_iter().map(move |piece| (region, piece))
        };
        let pieces = layouts.into_iter().enumerate().flat_map(of_region).collect();
        let queue = Arc::new(SearchQueue {
            pieces,
            next: AtomicUsize::new(0),
            room: AtomicUsize::new(kept),
            ended: AtomicBool::new(false),
        });
        let (alive, done) = mpsc::channel::<()>();
        let threads = (0..threads).map(|thread| {
            let (queue, alive) = (Arc::clone(&queue), alive.clone());
            scope.spawn(move || {
                let part = self.search_pieces(&queue, latest, thread);
                drop(alive);
                part
            })
        });
        Ok(ChangeSearch { threads: threads.collect(), done, queue, changes, data, began })
    }

    /// A thread of a search.
    fn search_pieces(
        &self,
        queue: &SearchQueue,
        latest: &Latest,
        thread: usize,
    ) -> anyhow::Result<ThreadChanges> {
        let mut copies =
            self.spare.lock().ok().and_then(|mut spare| spare.pop()).unwrap_or_default();
        copies.clear();
        let mut part = ThreadChanges { changes: Vec::new(), copies };
        let mut differing = Vec::new();
        while !queue.ended.load(Ordering::Relaxed) {
            let at = queue.next.fetch_add(1, Ordering::Relaxed);
            let Some((region, piece)) = queue.pieces.get(at) else { break };
            self.look_at(&self.blocks[*region], piece, |bytes| {
                let first = piece.start / PAGE as u64;
                for (chunk, first) in bytes.chunks(CHUNK).zip((first..).step_by(CHUNK / PAGE)) {
                    latest.differing(*region, first, chunk, &mut differing);
                    // While it is in the cache.
                    for pages in differing.drain(..) {
                        let start = (pages.start - first) as usize * PAGE;
                        let bytes = &chunk[start..][..(pages.end - pages.start) as usize * PAGE];
                        let at = part.copies.len();
                        let bytes = if queue.has_room(bytes.len()) {
                            part.copies.extend_from_slice(bytes);
                            ChangeBytes::Copied { thread, at }
                        } else {
                            ChangeBytes::InPlace
                        };
                        part.changes.push(PagesChange { region: *region, pages, bytes });
                    }
                }
            })?;
        }
        Ok(part)
    }

    /// Passes the changes found to the writer, as a layer.
    pub(crate) fn write_found(
        &self,
        writer: &mut CheckpointWriter<'_>,
        found: FoundChanges,
        look: &mut Look<'_>,
    ) -> anyhow::Result<MemoryPass> {
        let began = Instant::now();
        let mut pass = found.pass();
        writer.begin_layer().map_err(|e| fault(&e, true))?;
        let mut region = None;
        for change in &found.changes {
            look()?;
            if region.replace(change.region) != Some(change.region) {
                writer.region_again(change.region).map_err(|e| fault(&e, true))?;
            }
            self.write_change(change, &found.copies, writer)?;
        }
        if let Ok(mut spare) = self.spare.lock() {
            spare.extend(found.copies);
        }
        pass.wall += began.elapsed();
        Ok(pass)
    }

    fn write_change(
        &self,
        change: &PagesChange,
        copies: &[Vec<u8>],
        writer: &mut CheckpointWriter<'_>,
    ) -> anyhow::Result<()> {
        static ZEROS: [u8; 16 * PAGE] = [0; 16 * PAGE];
        let page = PAGE as u64;
        let (start, end) = (change.pages.start, change.pages.end);
        match change.bytes {
            ChangeBytes::Copied { thread, at } => {
                let bytes = &copies[thread][at..][..(end - start) as usize * PAGE];
                writer.pages(start, bytes).map_err(|e| fault(&e, true))
            }
            ChangeBytes::InPlace => {
                let block = &self.blocks[change.region];
                let bytes = start * page..end * page;
                let written = self.look_at(block, &bytes, |b| writer.pages(start, b))?;
                written.map_err(|e| fault(&e, true))
            }
            ChangeBytes::Hole => {
                let mut at = start;
                while at < end {
                    let count = (end - at).min(16);
                    let zeros = &ZEROS[..count as usize * PAGE];
                    writer.pages(at, zeros).map_err(|e| fault(&e, true))?;
                    at += count;
                }
                Ok(())
            }
        }
    }

    fn layouts(&self) -> io::Result<Vec<BlockLayout>> {
        self.blocks.iter().map(MemoryBlock::layout).collect()
    }

    /// Reads bytes of a block.
    fn look_at<R>(
        &self,
        block: &MemoryBlock<'_>,
        bytes: &Range<u64>,
        look: impl FnOnce(&[u8]) -> R,
    ) -> anyhow::Result<R> {
        let range = bytes.start as usize..bytes.end as usize;
        block.map.populate(range.clone()).map_err(|error| {
            let what = "memory cannot be read; was it made shorter, or does its disk fail?";
            CodedError::new(Code::Input, format!("{}: {what}", self.from.display()))
                .answered(&error)
        })?;
        let result = block.map.with(range.clone(), look);
        if !self.keep {
            block.map.forget(range);
        }
        Ok(result)
    }
}

/// Processors that this program may use.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(THREADS)
}

/// Pages that changed since the last write.
struct PagesChange {
    region: usize,
    pages: Range<u64>,
    bytes: ChangeBytes,
}

/// The source of a change's bytes.
enum ChangeBytes {
    /// They were freed since, and are zero.
    Hole,
    /// In the copies of a thread.
    Copied { thread: usize, at: usize },
    /// In memory: there was no space for a copy.
    InPlace,
}

/// Shared state of the search threads.
struct SearchQueue {
    /// Pieces of the regions.
    pieces: Vec<(usize, Range<u64>)>,
    /// The next piece to search.
    next: AtomicUsize,
    /// Bytes that may still be copied.
    room: AtomicUsize,
    /// The search is cancelled.
    ended: AtomicBool,
}

impl SearchQueue {
    /// Takes so much of the room, if it is there.
    fn has_room(&self, bytes: usize) -> bool {
        let less = |room: usize| room.checked_sub(bytes);
        self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// Changes found by a thread.
struct ThreadChanges {
    changes: Vec<PagesChange>,
    copies: Vec<u8>,
}

/// Threads that search for changes since the last write. They end on drop.
pub(crate) struct ChangeSearch<'scope> {
    threads: Vec<ScopedJoinHandle<'scope, anyhow::Result<ThreadChanges>>>,
    /// Disconnected when all threads have ended.
    done: Receiver<()>,
    queue: Arc<SearchQueue>,
    changes: Vec<PagesChange>,
    data: u64,
    began: Instant,
}

impl ChangeSearch<'_> {
    /// Waits for the threads.
    pub(crate) fn finish(mut self, look: &mut Look<'_>) -> anyhow::Result<FoundChanges> {
        look()?;
        while let Err(RecvTimeoutError::Timeout) = self.done.recv_timeout(LOOK) {
            look()?;
        }
        let mut changes = std::mem::take(&mut self.changes);
        let mut copies = Vec::new();
        for thread in std::mem::take(&mut self.threads) {
            let part = thread.join();
            let part =
                part.map_err(|_| anyhow::anyhow!("a thread that compares memory ended"))??;
            changes.extend(part.changes);
            copies.push(part.copies);
        }
        changes.sort_by_key(|change| (change.region, change.pages.start));
        Ok(FoundChanges { changes, copies, data: self.data, time: self.began.elapsed() })
    }
}

impl Drop for ChangeSearch<'_> {
    fn drop(&mut self) {
        self.queue.ended.store(true, Ordering::Relaxed);
    }
}

/// Changes since the last write.
#[derive(Default)]
pub(crate) struct FoundChanges {
    /// By region, ascending.
    changes: Vec<PagesChange>,
    /// Copies of each thread.
    copies: Vec<Vec<u8>>,
    data: u64,
    time: Duration,
}

impl FoundChanges {
    /// Whether all changes were copied, so that the memory may change.
    pub(crate) fn is_copied(&self) -> bool {
        !self.changes.iter().any(|change| matches!(change.bytes, ChangeBytes::InPlace))
    }

    /// Time of the search.
    pub(crate) fn pass(&self) -> MemoryPass {
        let pages = self.changes.iter().map(|change| change.pages.end - change.pages.start).sum();
        let (search, wall) = (self.time, self.time);
        MemoryPass { pages, data: self.data, search, wall, is_copied: self.is_copied() }
    }
}

impl MemoryBlock<'_> {
    fn layout(&self) -> io::Result<BlockLayout> {
        let page = PAGE as u64;
        let (mut pieces, mut holes, mut data, mut last) = (Vec::new(), Vec::new(), 0, 0);
        for extent in process_memory::extents(self.file, self.offset..self.offset + self.bytes)? {
            let extent = extent.start - self.offset..extent.end - self.offset;
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
        Ok(BlockLayout { pieces, holes, data })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use vmtax_pageops::Cpu;
    use vmtax_pageops::checkpoint::{Checkpoint, CheckpointOptions};

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
            Ram::image(name, PAGES * PAGE as u64, file)
        });
        let memory = MemoryBlocks::new(dir.path(), &ram, true).unwrap();
        let mut cpu = Cpu::best();
        let path = dir.path().join("x.ckpt");
        let options = CheckpointOptions { live: true, ..CheckpointOptions::default() };
        let mut writer = CheckpointWriter::create(&path, options, &mut cpu).unwrap();
        let mut look = || Ok(());
        let passes = memory.write_live(&mut writer, None, &mut look).unwrap();
        let counts: Vec<u64> = passes.iter().map(|pass| pass.pages).collect();
        assert_eq!(counts, [7200, 0]);

        let put =
            |at: u64, age: u8| ram[1].file.write_all_at(&page(age), at * PAGE as u64).unwrap();
        put(0, 1);
        put(999, 2);
        process_memory::punch(&ram[1].file, 2000 * PAGE as u64..2100 * PAGE as u64).unwrap();
        put(2050, 3);
        put(5999, 4);
        // Written, and as it was.
        let mut same = page(7);
        same[..8].copy_from_slice(&7u64.to_le_bytes());
        ram[0].file.write_all_at(&same, 7 * PAGE as u64).unwrap();
        assert_eq!(memory.write_changes(&mut writer, 3, &mut look).unwrap().pages, 103);
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
        let ram = [Ram::image("a", 4 * PAGE as u64, file)];
        let memory = MemoryBlocks::new(dir.path(), &ram, true).unwrap();
        let mut cpu = Cpu::best();
        let options = CheckpointOptions { live: true, ..CheckpointOptions::default() };
        let mut writer =
            CheckpointWriter::create(&dir.path().join("x"), options, &mut cpu).unwrap();
        memory.write(&mut writer, &mut || Ok(())).unwrap();
        let ended = memory.write_changes(&mut writer, 3, &mut || anyhow::bail!("enough"));
        assert_eq!(ended.unwrap_err().to_string(), "enough");
        // The file becomes shorter than it was.
        ram[0].file.set_len(0).unwrap();
        let error = memory.look_at(&memory.blocks[0], &(0..PAGE as u64), |_| ()).unwrap_err();
        assert!(error.to_string().contains("memory cannot be read"), "{error}");
    }

    /// What was found is written as it was then, whatever became of it; what there was no room to copy, from the memory itself.
    #[test]
    fn changed_pages_are_copied_up_to_the_limit() {
        const PAGES: u64 = 400;
        let dir = tempfile::tempdir().unwrap();
        let page = |age: u64, at: u64| (age << 32 | at).to_le_bytes().repeat(PAGE / 8);
        for (kept, room) in [(KEPT, PAGES), (80 * PAGE, 80)] {
            let file = tempfile::tempfile().unwrap();
            let put = |age: u64| {
                for at in 0..PAGES {
                    file.write_all_at(&page(age, at), at * PAGE as u64).unwrap();
                }
            };
            put(1);
            let copy = file.try_clone().unwrap();
            let ram = [Ram::image("a", PAGES * PAGE as u64, copy)];
            let memory = MemoryBlocks::new(dir.path(), &ram, true).unwrap();
            let mut cpu = Cpu::best();
            let path = dir.path().join("x.ckpt");
            let options = CheckpointOptions { live: true, ..CheckpointOptions::default() };
            let mut writer = CheckpointWriter::create(&path, options, &mut cpu).unwrap();
            memory.write(&mut writer, &mut || Ok(())).unwrap();
            put(2);
            let found = std::thread::scope(|scope| {
                let search = memory.search(scope, writer.latest().unwrap(), 2, kept).unwrap();
                search.finish(&mut || Ok(())).unwrap()
            });
            assert_eq!((found.is_copied(), found.pass().pages), (room == PAGES, PAGES));
            put(3);
            let pass = memory.write_found(&mut writer, found, &mut || Ok(())).unwrap();
            assert_eq!(pass.predicts() == pass.wall, room != PAGES);
            writer.finish(&mut io::empty(), b"").unwrap().publish().unwrap();
            let checkpoint = Checkpoint::open(&path).unwrap();
            let mut saved = vec![0; PAGE * PAGES as usize];
            checkpoint.read(0, 0, &mut saved).unwrap();
            let pages = || saved.chunks_exact(PAGE).zip(0..);
            let copied = pages().filter(|(saved, at)| *saved == page(2, *at)).count() as u64;
            assert!(pages().all(|(saved, at)| saved == page(2, at) || saved == page(3, at)));
            assert_eq!(copied, room);
        }
    }
}
