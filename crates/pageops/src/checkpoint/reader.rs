//! Reads a checkpoint with its parents, and verifies everything before it is used.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::error::{DamageReason, Error};
use super::format::{
    CheckpointId, HEADER, Index, LayerPiece, Naming, PageRun, RunKind, TRAILER, Trailer,
    check_header,
};
use crate::{Cpu, PAGE, xbzrle};

/// Most parents of a chain.
const DEPTH: usize = 128;
/// Pages read together.
const CHUNK: u64 = 64;

/// An open checkpoint with verified index and device state.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    file: File,
    /// Device and inode: one file has many names.
    identity: (u64, u64),
    index: Index,
    /// The valid parts of each region.
    pieces: Vec<Vec<LayerPiece>>,
    trailer: Trailer,
    description: Vec<u8>,
    id: CheckpointId,
    len: u64,
    parent: Option<Box<Checkpoint>>,
}

/// A block of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionInfo<'a> {
    /// Its name.
    pub name: &'a str,
    /// Pages in it.
    pub pages: u64,
}

/// Pages of one file by their storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Uncompressed.
    pub raw: u64,
    /// Marked as zero.
    pub zero: u64,
    /// A repeated word.
    pub filled: u64,
    /// Compressed.
    pub compressed: u64,
    /// Deltas.
    pub deltas: u64,
}

/// The destination of a restore. Regions are numbered as in the checkpoint.
pub trait RestoreTarget {
    /// Sets the length of a region, and makes it zero.
    fn clear(&mut self, region: usize, bytes: u64) -> io::Result<()>;
    /// Writes pages that are not all zero.
    fn write(&mut self, region: usize, at: u64, bytes: &[u8]) -> io::Result<()>;
}

/// Called with verified pages: region, first page, bytes.
type EachChunk<'a> = dyn FnMut(usize, u64, &[u8]) -> io::Result<()> + 'a;

impl Checkpoint {
    /// Opens a checkpoint and its parents, and verifies their ids. Pages are verified when they are read.
    pub fn open(path: &Path) -> Result<Checkpoint, Error> {
        Checkpoint::open_chain(Checkpoint::open_one(path).map_err(Error::at(path))?)
    }

    fn open_chain(child: Checkpoint) -> Result<Checkpoint, Error> {
        let path = child.path.clone();
        let mut chain = vec![child];
        while let Some(parent) = Checkpoint::open_parent(&chain)? {
            chain.push(parent);
        }
        let join = |parent: Checkpoint, child: Checkpoint| Checkpoint {
            parent: Some(Box::new(parent)),
            ..child
        };
        let joined = chain.into_iter().rev().reduce(join);
        joined
            .ok_or_else(|| Error::at(&path)(DamageReason::Misused("a chain without a checkpoint")))
    }

    /// As [`Checkpoint::open`], for an open file without a name, such as a copy of a stream. It is called `name` in errors; its parent must
    /// have an absolute path.
    pub fn open_file(file: File, name: &str) -> Result<Checkpoint, Error> {
        let path = Path::new(name);
        Checkpoint::open_chain(Checkpoint::read_one(file, path).map_err(Error::at(path))?)
    }

    /// Opens the parent of a chain's last, if it has one.
    fn open_parent(chain: &[Checkpoint]) -> Result<Option<Checkpoint>, Error> {
        let Some(child) = chain.last() else { return Ok(None) };
        let Some(path) = child.parent_path() else { return Ok(None) };
        check_cycle(chain, &path)?;
        let error = Error::at(&child.path);
        if chain.len() > DEPTH {
            return Err(error(DamageReason::Depth(DEPTH)));
        }
        let parent = Checkpoint::open_one(&path).map_err(Error::at(&path))?;
        if parent.id.0 != child.trailer.parent {
            return Err(error(DamageReason::Parent { parent: path.display().to_string() }));
        }
        if !parent.regions().eq(child.regions()) {
            return Err(error(DamageReason::Shape("regions of other names or sizes".to_owned())));
        }
        Ok(Some(parent))
    }

    /// The path of its parent, if it has one.
    fn parent_path(&self) -> Option<PathBuf> {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        (self.trailer.parent != [0; 32]).then(|| folder.join(&self.index.parent))
    }

    fn open_one(path: &Path) -> Result<Checkpoint, DamageReason> {
        // Opening a pipe or a device could block.
        if !path.metadata()?.is_file() {
            return Err(DamageReason::NotOne);
        }
        Checkpoint::read_one(File::open(path)?, path)
    }

    fn read_one(file: File, path: &Path) -> Result<Checkpoint, DamageReason> {
        let metadata = file.metadata()?;
        let (len, identity) = (metadata.len(), identity(&metadata));
        let mut header = vec![0; HEADER.min(len) as usize];
        file.read_exact_at(&mut header, 0)?;
        let version = check_header(&header)?;
        if len < HEADER + TRAILER {
            return Err(DamageReason::Damaged { at: len, what: "it ends before its first page" });
        }
        let mut end = [0; TRAILER as usize];
        file.read_exact_at(&mut end, len - TRAILER)?;
        let (trailer, id) = Trailer::decode(&end, len, version)?;
        let mut naming = Naming::default();
        naming.update(&header);
        let mut chunk = vec![0; 64 << 10];
        let mut at = trailer.state_at;
        while at < trailer.index_at() {
            let step = (trailer.index_at() - at).min(chunk.len() as u64) as usize;
            file.read_exact_at(&mut chunk[..step], at)?;
            naming.update(&chunk[..step]);
            at += step as u64;
        }
        let mut index = Vec::new();
        let too_long =
            |_| DamageReason::Damaged { at, what: "an index longer than this machine's memory" };
        index.try_reserve_exact(trailer.index_len as usize).map_err(too_long)?;
        index.resize(trailer.index_len as usize, 0);
        file.read_exact_at(&mut index, at)?;
        naming.update(&index);
        naming.update(&end[..96]);
        if naming.finish() != id {
            return Err(DamageReason::Checksum);
        }
        let index = Index::decode(&index, version, at, trailer.state_at)?;
        let pieces = index.regions.iter().map(|r| r.pieces()).collect();
        let mut description = vec![0; trailer.description_len as usize];
        file.read_exact_at(&mut description, trailer.description_at())?;
        let path = path.to_owned();
        let parent = None;
        Ok(Checkpoint {
            path,
            file,
            identity,
            index,
            pieces,
            trailer,
            description,
            id,
            len,
            parent,
        })
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version of its format.
    pub fn version(&self) -> u32 {
        self.trailer.version
    }

    /// The description of the machine; empty for an image, and in version 1.
    pub fn description(&self) -> &[u8] {
        &self.description
    }

    /// Its id, which is also its checksum.
    pub fn id(&self) -> CheckpointId {
        self.id
    }

    /// Its parent.
    pub fn parent(&self) -> Option<&Checkpoint> {
        self.parent.as_deref()
    }

    /// The member of the chain that is this file, also by a link or another mount.
    pub fn in_chain(&self, path: &Path) -> Option<&Checkpoint> {
        let found = identity(&path.metadata().ok()?);
        std::iter::successors(Some(self), |c| c.parent()).find(|c| c.identity == found)
    }

    /// Bytes of its file, without parents.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Bytes of device state.
    pub fn state_len(&self) -> u64 {
        self.trailer.state_len
    }

    /// Blocks of memory, in order.
    pub fn regions(&self) -> impl Iterator<Item = RegionInfo<'_>> {
        self.index.regions.iter().map(|r| RegionInfo { name: &r.name, pages: r.pages })
    }

    /// Pages of this file by their storage.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        let pieces =
            self.pieces.iter().enumerate().flat_map(|(i, p)| p.iter().map(move |p| (i, p)));
        for (region, piece) in pieces {
            *match self.run(region, piece).kind {
                RunKind::Raw => &mut totals.raw,
                RunKind::Zero => &mut totals.zero,
                RunKind::Fill(_) => &mut totals.filled,
                RunKind::Zstd(_) => &mut totals.compressed,
                RunKind::Xbzrle => &mut totals.deltas,
            } += piece.end - piece.first;
        }
        totals
    }

    /// Reads the device state.
    pub fn state(&self) -> impl Read + '_ {
        ReaderState {
            file: &self.file,
            at: self.trailer.state_at,
            end: self.trailer.description_at(),
        }
    }

    /// Ranges of pages within `range` that this or a parent stores. All others are zero.
    pub fn stored(&self, region: usize, range: Range<u64>) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut level = Some(self);
        while let Some(one) = level {
            let clipped = one
                .overlapping(region, &range)
                .iter()
                .map(|piece| piece.first.max(range.start)..piece.end.min(range.end));
            ranges.extend(clipped);
            level = one.parent();
        }
        ranges.sort_by_key(|r| r.start);
        let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match joined.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        joined
    }

    /// Reads pages from `first` on, and verifies each.
    ///
    /// # Panics
    ///
    /// When there is no such region.
    pub fn read(&self, region: usize, first: u64, pages: &mut [u8]) -> Result<(), Error> {
        match &self.parent {
            Some(parent) => parent.read(region, first, pages)?,
            None => pages.fill(0),
        }
        let range = first..first + (pages.len() / PAGE) as u64;
        for piece in self.overlapping(region, &range) {
            let run = self.run(region, piece);
            let part = piece.first.max(range.start)..piece.end.min(range.end);
            let at = (part.start - first) as usize * PAGE;
            let into = &mut pages[at..][..(part.end - part.start) as usize * PAGE];
            self.read_run(region, run, part, into).map_err(Error::at(&self.path))?;
        }
        Ok(())
    }

    /// Reads every page of this and its parents and checks it. `progress` is called with the number of pages done.
    pub fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<(), Error> {
        self.each_chunk(progress, &mut |_, _, _| Ok(()))
    }

    /// Restores all memory. `progress` is called with the number of pages done.
    pub fn restore(
        &self,
        target: &mut dyn RestoreTarget,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        for (i, region) in self.regions().enumerate() {
            let bytes = region.pages * PAGE as u64;
            target.clear(i, bytes).map_err(|e| Error::at(&self.path)(DamageReason::Target(e)))?;
        }
        let cpu = Cpu::best();
        self.each_chunk(progress, &mut |region, first, pages| {
            let mut at = 0;
            let count = pages.len() / PAGE;
            let zero = |i: usize| cpu.is_zero(&pages[i * PAGE..][..PAGE]);
            while at < count {
                if zero(at) {
                    at += 1;
                    continue;
                }
                let mut end = at + 1;
                while end < count && !zero(end) {
                    end += 1;
                }
                let offset = (first + at as u64) * PAGE as u64;
                target.write(region, offset, &pages[at * PAGE..end * PAGE])?;
                at = end;
            }
            Ok(())
        })
    }

    /// Pages that [`Checkpoint::verify`] and [`Checkpoint::restore`] go through.
    pub fn work(&self) -> u64 {
        let all = self.index.regions.iter().enumerate();
        all.flat_map(|(i, r)| self.stored(i, 0..r.pages)).map(|r| r.end - r.start).sum()
    }

    fn each_chunk(
        &self,
        progress: &mut dyn FnMut(u64),
        each: &mut EachChunk<'_>,
    ) -> Result<(), Error> {
        let mut buffer = vec![0; CHUNK as usize * PAGE];
        let mut done = 0;
        for (i, region) in self.index.regions.iter().enumerate() {
            for range in self.stored(i, 0..region.pages) {
                let mut at = range.start;
                while at < range.end {
                    // To the next multiple, so that compressed groups are read once.
                    let step = (CHUNK - at % CHUNK).min(range.end - at);
                    let pages = &mut buffer[..step as usize * PAGE];
                    self.read(i, at, pages)?;
                    each(i, at, pages)
                        .map_err(|e| Error::at(&self.path)(DamageReason::Target(e)))?;
                    at += step;
                    done += step;
                    progress(done);
                }
            }
        }
        Ok(())
    }

    /// Pieces that overlap a range.
    fn overlapping(&self, region: usize, range: &Range<u64>) -> &[LayerPiece] {
        let pieces = &self.pieces[region];
        let start = pieces.partition_point(|piece| piece.end <= range.start);
        let count = pieces[start..].partition_point(|piece| piece.first < range.end);
        &pieces[start..start + count]
    }

    fn run(&self, region: usize, piece: &LayerPiece) -> &PageRun {
        &self.index.regions[region].layers[piece.layer as usize][piece.run as usize]
    }

    /// Reads the pages `part` of a run.
    fn read_run(
        &self,
        region: usize,
        run: &PageRun,
        part: Range<u64>,
        into: &mut [u8],
    ) -> Result<(), DamageReason> {
        let skip = (part.start - run.first) as usize;
        match run.kind {
            RunKind::Zero => into.fill(0),
            RunKind::Fill(word) => Cpu::best().fill(into, word),
            RunKind::Raw => self.read_payload(into, run.offset + (skip * PAGE) as u64)?,
            RunKind::Zstd(len) => {
                let mut compressed = vec![0; len as usize];
                self.read_payload(&mut compressed, run.offset)?;
                let mut group = vec![0; run.count as usize * PAGE];
                let read = zstd::bulk::decompress_to_buffer(&compressed, group.as_mut_slice());
                if !read.is_ok_and(|read| read == group.len()) {
                    let region = self.index.regions[region].name.clone();
                    return Err(DamageReason::Compressed {
                        region,
                        page: run.first,
                        last: run.end() - 1,
                    });
                }
                into.copy_from_slice(&group[skip * PAGE..][..into.len()]);
            }
            RunKind::Xbzrle => self.read_deltas(region, run, skip, into)?,
        }
        let crcs = run.crcs.get(skip..).unwrap_or_default();
        for (i, (page, crc)) in into.chunks_exact(PAGE).zip(crcs).enumerate() {
            let found = Cpu::best().crc32c(0, page);
            if found != *crc {
                let region = self.index.regions[region].name.clone();
                let page = part.start + i as u64;
                return Err(DamageReason::Page { region, page, found, expected: *crc });
            }
        }
        Ok(())
    }

    fn read_deltas(
        &self,
        region: usize,
        run: &PageRun,
        skip: usize,
        into: &mut [u8],
    ) -> Result<(), DamageReason> {
        let before: u64 = run.lengths[..skip].iter().map(|l| u64::from(*l)).sum();
        let mut at = run.offset + before;
        let mut delta = [0; PAGE];
        for (i, page) in into.chunks_exact_mut(PAGE).enumerate() {
            let len = usize::from(run.lengths[skip + i]);
            self.read_payload(&mut delta[..len], at)?;
            at += len as u64;
            if let Err(error) = xbzrle::decode(&delta[..len], page) {
                let region = self.index.regions[region].name.clone();
                let page = run.first + (skip + i) as u64;
                return Err(DamageReason::Delta { region, page, error });
            }
        }
        Ok(())
    }

    fn read_payload(&self, into: &mut [u8], at: u64) -> Result<(), DamageReason> {
        self.file.read_exact_at(into, at).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                DamageReason::Damaged { at, what: "the file was cut while it was read" }
            }
            _ => DamageReason::Io(error),
        })
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Checks that the chain has no cycle.
fn check_cycle(chain: &[Checkpoint], parent: &Path) -> Result<(), Error> {
    // If it cannot be examined, opening it gives the error.
    let Ok(found) = parent.metadata().as_ref().map(identity) else { return Ok(()) };
    match chain.iter().position(|one| one.identity == found) {
        Some(at) => {
            let names = chain[at..].iter().map(|one| one.path.clone());
            let cycle = names.chain([chain[at].path.clone()]).collect();
            Err(Error::at(&chain[0].path)(DamageReason::Cycle(cycle)))
        }
        None => Ok(()),
    }
}

/// Checkpoints in the same folder that are based on this one. Other and unreadable files are skipped.
///
/// # Errors
/// The file or its folder cannot be read.
pub fn children(path: &Path) -> io::Result<Vec<PathBuf>> {
    let path = path.canonicalize()?;
    let Some((_, id)) = ends(&path)? else { return Ok(Vec::new()) };
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)?.flatten() {
        let child = entry.path();
        if let Ok(Some((trailer, _))) = ends(&child)
            && trailer.parent == id.0
        {
            found.push(child);
        }
    }
    found.sort();
    Ok(found)
}

/// The trailer and the id of a checkpoint, unchecked; `None` of another file.
fn ends(path: &Path) -> io::Result<Option<(Trailer, CheckpointId)>> {
    // Opening a pipe or a device could block.
    if !path.metadata()?.is_file() {
        return Ok(None);
    }
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut header = vec![0; HEADER.min(len) as usize];
    file.read_exact_at(&mut header, 0)?;
    let Ok(version) = check_header(&header) else { return Ok(None) };
    if len < HEADER + TRAILER {
        return Ok(None);
    }
    let mut end = [0; TRAILER as usize];
    file.read_exact_at(&mut end, len - TRAILER)?;
    Ok(Trailer::decode(&end, len, version).ok())
}

struct ReaderState<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for ReaderState<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let len = buffer.len().min(left);
        let read = self.file.read_at(&mut buffer[..len], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
