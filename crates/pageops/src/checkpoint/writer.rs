//! Writing: pages in, one file out.

mod finished;

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use vmtax_durable::{FileAccess, NewFile};

use finished::FinishedTarget;
pub use finished::{FinishedCheckpoint, Summary};

use super::disk::begin_sync;
use super::error::{DamageReason, Error};
use super::format::{
    DELTAS, DESCRIPTION, GROUP, Index, LAYERS, Naming, PageRun, Region, RunKind, TRAILER, Trailer,
    VERSION, header,
};
use super::latest::{Latest, Sort};
use super::meter::{Phase, PhaseMeter, TimedFile};
use super::reader::Checkpoint;
use super::trial::RecentTrial;
use crate::{Cpu, PAGE, PageFacts};

/// Pages processed together: they fit in a core's L2 cache, so writing reads from there.
const CHUNK: usize = 64;
/// Bytes after which writeback to disk is started.
const EAGER: u64 = 8 << 20;

/// A backend that scans and checksums pages: the CPU, or an engine with devices.
pub trait Accelerate {
    /// Facts about each page.
    fn scan(&mut self, pages: &[u8], out: &mut [PageFacts]);
    /// The CPU, in the calling thread.
    fn is_cpu(&self) -> bool {
        false
    }
}

impl Accelerate for Cpu {
    fn scan(&mut self, pages: &[u8], out: &mut [PageFacts]) {
        Cpu::scan(self, pages, out);
    }
    fn is_cpu(&self) -> bool {
        true
    }
}

/// Options of a checkpoint.
#[derive(Debug, Default)]
pub struct CheckpointOptions {
    /// Level of zstd; `None`: uncompressed.
    pub zstd: Option<i32>,
    /// The parent, to save the difference to it.
    pub parent: Option<Checkpoint>,
    /// The memory changes during the save, so pages may be given again: [`CheckpointWriter::begin_layer`].
    pub live: bool,
}

/// Writes a checkpoint.
pub struct CheckpointWriter<'a> {
    accelerate: &'a mut dyn Accelerate,
    options: CheckpointOptions,
    path: PathBuf,
    /// `None`: a stream.
    new: Option<NewFile>,
    out: BufWriter<TimedFile>,
    meter: PhaseMeter,
    naming: Naming,
    /// Place in the file.
    at: u64,
    /// Offset up to which writeback was started.
    begun: u64,
    index: Index,
    /// The current region.
    region: Option<usize>,
    /// Next page of the region.
    next: u64,
    /// State of a live save.
    latest: Option<Latest>,
    facts: Vec<PageFacts>,
    /// The current chunk. The caller's memory may be a VM's and change between two reads, so it is read once, into this copy, which is
    /// compared, checksummed and written.
    chunk: Vec<u8>,
    old: Vec<u8>,
    delta: Vec<u8>,
    compressed: Vec<u8>,
    compressor: Option<zstd::bulk::Compressor<'static>>,
    trial: RecentTrial,
    summary: Summary,
}

impl<'a> CheckpointWriter<'a> {
    /// Begins a checkpoint at `path`, or at the target of that link. It appears there at [`FinishedCheckpoint::publish`].
    ///
    /// # Errors
    /// `path` is the file of a parent, or it cannot be written.
    pub fn create(
        path: &Path,
        options: CheckpointOptions,
        accelerate: &'a mut dyn Accelerate,
    ) -> Result<CheckpointWriter<'a>, Error> {
        let error = Error::at(path);
        let io = |e| error(DamageReason::Io(e));
        if let Some(ancestor) = options.parent.as_ref().and_then(|parent| parent.in_chain(path)) {
            return Err(error(DamageReason::Ancestor { file: ancestor.path().to_owned() }));
        }
        // Renaming would replace a symbolic link.
        let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let new = NewFile::create(path, FileAccess::Private).map_err(io)?;
        let file = new.file().try_clone().map_err(io)?;
        CheckpointWriter::begin(path, Some(new), TimedFile::new(file), options, accelerate)
    }

    /// Begins a checkpoint that is streamed to a pipe or socket, called `name` in errors. The trailer is sent at [`FinishedCheckpoint::publish`]: a
    /// truncated stream is not a checkpoint. Once `stop` is set, a write that waits for the reader fails.
    pub fn stream(
        file: File,
        name: &str,
        options: CheckpointOptions,
        accelerate: &'a mut dyn Accelerate,
        stop: Arc<AtomicBool>,
    ) -> Result<CheckpointWriter<'a>, Error> {
        let file = TimedFile::stream(file, stop);
        CheckpointWriter::begin(Path::new(name), None, file, options, accelerate)
    }

    fn begin(
        path: &Path,
        new: Option<NewFile>,
        mut file: TimedFile,
        options: CheckpointOptions,
        accelerate: &'a mut dyn Accelerate,
    ) -> Result<CheckpointWriter<'a>, Error> {
        let io = |e| Error::at(path)(DamageReason::Io(e));
        let mut index = Index::default();
        if let Some(parent) = &options.parent {
            let child = new.is_some().then_some(path);
            index.parent = name_of_parent(child, parent.path()).map_err(io)?;
        }
        let compressor = options.zstd.map(zstd::bulk::Compressor::new).transpose().map_err(io)?;
        let latest = options.live.then(Latest::new).transpose().map_err(io)?;
        let meter = PhaseMeter::new(&mut file);
        let out = BufWriter::with_capacity(128 << 10, file);
        let mut writer = CheckpointWriter {
            accelerate,
            options,
            path: path.to_owned(),
            new,
            out,
            meter,
            naming: Naming::default(),
            at: 0,
            begun: 0,
            index,
            region: None,
            next: 0,
            latest,
            facts: vec![PageFacts::default(); CHUNK],
            chunk: vec![0; CHUNK * PAGE],
            old: vec![0; CHUNK * PAGE],
            delta: vec![0; PAGE - 8],
            compressed: Vec::new(),
            compressor,
            trial: RecentTrial::default(),
            summary: Summary::default(),
        };
        let header = header(nonce().map_err(io)?);
        writer.naming.update(&header);
        writer.put(&header)?;
        Ok(writer)
    }

    /// Begins a region; its pages follow. A checkpoint with a parent has the parent's regions, in its order.
    pub fn region(&mut self, name: &str, pages: u64) -> Result<(), Error> {
        if self.index.regions.iter().any(|r| r.name == name) {
            return Err(self.error(DamageReason::Misused("two regions of one name")));
        }
        if self.layer() > 0 {
            return Err(self.error(DamageReason::Misused("a region that the first layer lacks")));
        }
        self.end_region()?;
        if let Some(parent) = &self.options.parent {
            let at = self.index.regions.len();
            match parent.regions().nth(at) {
                Some(r) if r.name == name && r.pages == pages => {}
                Some(r) => {
                    let what = format!(
                        "{name:?} of {pages} pages, the parent {:?} of {}",
                        r.name, r.pages
                    );
                    return Err(self.error(DamageReason::Shape(what)));
                }
                None => {
                    return Err(
                        self.error(DamageReason::Shape(format!("{name:?} is not in the parent")))
                    );
                }
            }
        }
        self.region = Some(self.index.regions.len());
        let layers = vec![Vec::new()];
        self.index.regions.push(Region { name: name.to_owned(), pages, layers });
        if let Some(latest) = &mut self.latest {
            latest.region(pages);
        }
        self.next = 0;
        Ok(())
    }

    /// Begins a further layer of a live save: pages given again replace those of earlier layers. All regions exist by then;
    /// [`CheckpointWriter::region_again`] selects the one whose pages follow.
    pub fn begin_layer(&mut self) -> Result<(), Error> {
        if self.latest.is_none() {
            return Err(
                self.error(DamageReason::Misused("a further layer of a save that is not live"))
            );
        }
        if self.layer() + 1 >= LAYERS {
            return Err(self.error(DamageReason::Misused("too many layers")));
        }
        self.end_region()?;
        self.region = None;
        for region in &mut self.index.regions {
            region.layers.push(Vec::new());
        }
        Ok(())
    }

    /// Begins a region in a further layer. Regions come in order; some may be omitted.
    pub fn region_again(&mut self, region: usize) -> Result<(), Error> {
        let in_order = self.region.is_none_or(|last| last < region);
        if self.layer() == 0 || region >= self.index.regions.len() || !in_order {
            return Err(
                self.error(DamageReason::Misused("regions of a further layer out of order"))
            );
        }
        self.region = Some(region);
        self.next = 0;
        Ok(())
    }

    /// The last written content of every page; `None` unless the save is live.
    pub fn latest(&self) -> Option<&Latest> {
        self.latest.as_ref()
    }

    /// The current layer, from 0.
    fn layer(&self) -> usize {
        self.index.regions.first().map_or(0, |region| region.layers.len().saturating_sub(1))
    }

    /// Adds pages from `first` on. Omitted pages before them are zero. Each byte is read once, so a checkpoint of changing memory
    /// verifies; the caller ensures that it is the memory of one moment.
    pub fn pages(&mut self, first: u64, bytes: &[u8]) -> Result<(), Error> {
        let Some(region) = self.region.map(|at| &self.index.regions[at]) else {
            return Err(self.error(DamageReason::Misused("pages outside of a region")));
        };
        let count = (bytes.len() / PAGE) as u64;
        if !bytes.len().is_multiple_of(PAGE) || first < self.next || first + count > region.pages {
            return Err(
                self.error(DamageReason::Misused("pages out of order, or behind the region"))
            );
        }
        self.gap(first)?;
        let mut at = first;
        let mut copy = std::mem::take(&mut self.chunk);
        self.meter.begin();
        for chunk in bytes.chunks(CHUNK * PAGE) {
            let copy = &mut copy[..chunk.len()];
            copy.copy_from_slice(chunk);
            self.meter.lap(Phase::Copy, self.out.get_mut());
            self.chunk(at, copy)?;
            at += (chunk.len() / PAGE) as u64;
        }
        self.chunk = copy;
        self.next = at;
        Ok(())
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.at
    }

    /// Adds the device state and a description of the machine, at most 16 MiB, and syncs the file. [`FinishedCheckpoint::publish`] gives it its
    /// name.
    pub fn finish(
        mut self,
        state: &mut dyn Read,
        description: &[u8],
    ) -> Result<FinishedCheckpoint, Error> {
        if description.len() as u64 > DESCRIPTION {
            return Err(self.error(DamageReason::Misused("a description of more than 16 MiB")));
        }
        self.meter.begin();
        self.end_region()?;
        if let Some(parent) = &self.options.parent
            && parent.regions().count() != self.index.regions.len()
        {
            return Err(
                self.error(DamageReason::Shape("a region of the parent is missing".to_owned()))
            );
        }
        let state_at = self.at;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = state.read(&mut buffer).map_err(|e| self.error(DamageReason::Io(e)))?;
            if read == 0 {
                break;
            }
            self.naming.update(&buffer[..read]);
            self.put(&buffer[..read])?;
        }
        let state_len = self.at - state_at;
        self.naming.update(description);
        self.put(description)?;
        let description_len = description.len() as u64;
        let index = std::mem::take(&mut self.index).encode();
        self.naming.update(&index);
        self.put(&index)?;
        let parent = self.options.parent.as_ref().map_or([0; 32], |p| p.id().0);
        let index_len = index.len() as u64;
        let version = VERSION;
        let trailer =
            Trailer { version, state_at, state_len, description_len, index_len, parent }.encode();
        self.naming.update(&trailer);
        let id = std::mem::take(&mut self.naming).finish();
        let mut end = [0; TRAILER as usize];
        end[..96].copy_from_slice(&trailer);
        end[96..].copy_from_slice(&id.0);
        match self.new {
            Some(_) => self.put(&end)?,
            None => self.at += TRAILER,
        }
        let CheckpointWriter { new, mut out, mut meter, path, mut summary, at, latest, .. } = self;
        if let Some(latest) = latest {
            for (sort, count) in latest.counts() {
                *summary.count(sort) = count;
            }
        }
        summary.bytes = at;
        let flushed = out.flush();
        meter.lap(Phase::Write, out.get_mut());
        let synced =
            flushed.and_then(|()| new.as_ref().map_or(Ok(()), |new| new.file().sync_all()));
        meter.lap(Phase::Sync, out.get_mut());
        let costs = meter.costs();
        let target = match new {
            Some(new) => FinishedTarget::File(new),
            None => FinishedTarget::Stream(Box::new((out, end))),
        };
        match synced {
            Ok(()) => Ok(FinishedCheckpoint { target, path, summary, costs, id }),
            Err(e) => Err(Error { path, reason: DamageReason::Io(e) }),
        }
    }

    fn error(&self, reason: DamageReason) -> Error {
        Error { path: self.path.clone(), reason }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes).map_err(|e| self.error(DamageReason::Io(e)))?;
        if let Some(new) = &self.new
            && self.at - self.begun >= EAGER
        {
            begin_sync(new.file(), self.begun..self.at);
            self.begun = self.at;
        }
        Ok(())
    }

    fn end_region(&mut self) -> Result<(), Error> {
        match self.index.regions.last() {
            Some(region) => self.gap(region.pages),
            None => Ok(()),
        }
    }

    /// Marks pages up to `end` as zero. If there is a parent, its pages need an entry. In a further layer they are unchanged.
    fn gap(&mut self, end: u64) -> Result<(), Error> {
        let range = self.next..end;
        if let (Some(parent), Some(region), 0) = (&self.options.parent, self.region, self.layer())
            && !range.is_empty()
        {
            for stored in parent.stored(region, range) {
                self.push(RunKind::Zero, stored, &[], &[]);
            }
        }
        self.next = end;
        Ok(())
    }

    fn chunk(&mut self, first: u64, bytes: &[u8]) -> Result<(), Error> {
        let Some(region) = self.region else { return Ok(()) };
        let count = bytes.len() / PAGE;
        if let Some(latest) = &mut self.latest {
            latest.wrote(region, first, bytes);
            self.meter.lap(Phase::Fingerprint, self.out.get_mut());
        }
        let mut facts = std::mem::take(&mut self.facts);
        let mut old = std::mem::take(&mut self.old);
        self.accelerate.scan(bytes, &mut facts[..count]);
        let scan = self.meter.lap(Phase::Scan, self.out.get_mut());
        if self.meter.samples() && self.accelerate.is_cpu() {
            Cpu::best().zero_pages(bytes, PAGE, &mut |_| {});
            self.meter.sampled(scan);
        }
        if let Some(parent) = &self.options.parent {
            parent.read(region, first, &mut old[..bytes.len()])?;
        }
        let has_parent = self.options.parent.is_some();
        // Pages from here on are unwritten data.
        let mut pending = 0;
        for i in 0..count {
            let page = &bytes[i * PAGE..][..PAGE];
            let before = has_parent.then(|| &old[i * PAGE..][..PAGE]);
            let Some(small) = self.small(page, before, facts[i]) else { continue };
            self.data(first, bytes, pending..i, &facts)?;
            pending = i + 1;
            self.put_small(small, first + i as u64, facts[i].crc)?;
        }
        self.data(first, bytes, pending..count, &facts)?;
        self.meter.lap(Phase::Compare, self.out.get_mut());
        self.facts = facts;
        self.old = old;
        Ok(())
    }

    /// The short form of a page, if it has one.
    fn small(&mut self, page: &[u8], before: Option<&[u8]>, facts: PageFacts) -> Option<Small> {
        let cpu = Cpu::best();
        if let Some(before) = before
            && cpu.compare(before, page).is_none()
        {
            return Some(Small::Unchanged);
        }
        if facts.zero {
            return Some(Small::Zero);
        }
        // Most pages differ in the first two words.
        if page[..8] == page[8..16]
            && let Some(word) = cpu.same_fill(page)
        {
            return Some(Small::Fill(word));
        }
        let len = cpu.xbzrle_encode(before?, page, &mut self.delta).ok()?;
        Some(Small::Delta(len))
    }

    fn put_small(&mut self, small: Small, page: u64, crc: u32) -> Result<(), Error> {
        let pages = page..page + 1;
        // Pages that need no entry in the first layer replace an entry in a further one.
        let again = self.layer() > 0;
        match small {
            Small::Unchanged => {
                self.count(Sort::Unchanged, pages.clone());
                if again {
                    self.push(RunKind::Xbzrle, pages, &[crc], &[0]);
                }
            }
            Small::Zero => {
                self.count(Sort::Zero, pages.clone());
                if again || self.options.parent.is_some() {
                    self.push(RunKind::Zero, pages, &[], &[]);
                }
            }
            Small::Fill(word) => {
                self.count(Sort::Filled, pages.clone());
                self.push(RunKind::Fill(word), pages, &[], &[]);
            }
            Small::Delta(len) => {
                self.count(Sort::Delta, pages.clone());
                self.push(RunKind::Xbzrle, pages, &[crc], &[len as u16]);
                let delta = std::mem::take(&mut self.delta);
                self.put(&delta[..len])?;
                self.delta = delta;
            }
        }
        Ok(())
    }

    /// Adds pages that are stored in this way.
    fn count(&mut self, sort: Sort, pages: Range<u64>) {
        match (&mut self.latest, self.region) {
            // Counted at the end, because they may be written again.
            (Some(latest), Some(region)) => latest.sorted(region, pages, sort),
            _ => *self.summary.count(sort) += pages.end - pages.start,
        }
    }

    /// Adds a run whose payload follows, or extends the last one.
    fn push(&mut self, kind: RunKind, pages: Range<u64>, crcs: &[u32], lengths: &[u16]) {
        let Some(region) = self.region.and_then(|at| self.index.regions.get_mut(at)) else {
            return;
        };
        let Some(runs) = region.layers.last_mut() else { return };
        let count = pages.end - pages.start;
        if let Some(last) = runs.last_mut() {
            let grows = last.kind == kind
                && last.end() == pages.start
                && !matches!(kind, RunKind::Zstd(_))
                && (kind != RunKind::Xbzrle || last.count < DELTAS as u64);
            if grows {
                last.count += count;
                last.crcs.extend_from_slice(crcs);
                last.lengths.extend_from_slice(lengths);
                return;
            }
        }
        let (crcs, lengths) = (crcs.to_vec(), lengths.to_vec());
        runs.push(PageRun { kind, first: pages.start, count, offset: self.at, crcs, lengths });
    }

    /// Stores pages of a chunk, uncompressed or compressed.
    fn data(
        &mut self,
        first: u64,
        bytes: &[u8],
        pages: Range<usize>,
        facts: &[PageFacts],
    ) -> Result<(), Error> {
        let mut crcs = [0; CHUNK];
        for (crc, facts) in crcs.iter_mut().zip(facts) {
            *crc = facts.crc;
        }
        let mut at = pages.start;
        while at < pages.end {
            let step =
                if self.compresses(&bytes[at * PAGE..pages.end * PAGE])? { GROUP } else { CHUNK };
            let end = (at + step).min(pages.end);
            let group = &bytes[at * PAGE..end * PAGE];
            let page = first + at as u64;
            let count = (end - at) as u64;
            let smaller = step == GROUP && self.compress(group)?;
            if smaller {
                let compressed = std::mem::take(&mut self.compressed);
                self.count(Sort::Compressed, page..page + count);
                let kind = RunKind::Zstd(compressed.len() as u32);
                self.push(kind, page..page + count, &crcs[at..end], &[]);
                self.put(&compressed)?;
                self.compressed = compressed;
            } else {
                self.count(Sort::Raw, page..page + count);
                self.push(RunKind::Raw, page..page + count, &crcs[at..end], &[]);
                self.put(group)?;
            }
            at = end;
        }
        Ok(())
    }

    /// Whether to compress the following data.
    fn compresses(&mut self, data: &[u8]) -> Result<bool, Error> {
        if self.compressor.is_none() {
            return Ok(false);
        }
        if self.trial.pauses() && self.trial.probes(data.len() / PAGE) {
            self.compress(&data[..PAGE])?;
        }
        Ok(!self.trial.pauses())
    }

    /// Compresses a group; returns whether that saves space.
    fn compress(&mut self, group: &[u8]) -> Result<bool, Error> {
        let Some(compressor) = &mut self.compressor else { return Ok(false) };
        self.compressed.clear();
        self.compressed.reserve(zstd::zstd_safe::compress_bound(group.len()));
        self.meter.lap(Phase::Compare, self.out.get_mut());
        let done = compressor.compress_to_buffer(group, &mut self.compressed);
        self.meter.lap(Phase::Compress, self.out.get_mut());
        let len = done.map_err(|e| self.error(DamageReason::Io(e)))?;
        self.trial.learn(group.len(), len);
        Ok(len < group.len())
    }
}

/// A page stored in few bytes; a delta is in the writer's buffer.
enum Small {
    /// Equal to the parent's.
    Unchanged,
    Zero,
    Fill(u64),
    Delta(usize),
}

/// The parent's name in a child: without a folder if both are in the same one, which is never so for a stream.
fn name_of_parent(child: Option<&Path>, parent: &Path) -> std::io::Result<String> {
    let parent = parent.canonicalize()?;
    let folder = match child.map(Path::parent) {
        None => None,
        Some(Some(folder)) if !folder.as_os_str().is_empty() => Some(folder.canonicalize()?),
        Some(_) => Some(std::env::current_dir()?),
    };
    let name = folder.as_ref().and_then(|folder| parent.strip_prefix(folder).ok());
    let name = name.unwrap_or(&parent);
    let name = name.to_str().ok_or(std::io::ErrorKind::InvalidFilename)?;
    Ok(name.to_owned())
}

fn nonce() -> std::io::Result<[u8; 16]> {
    let mut nonce = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut nonce)?;
    Ok(nonce)
}
