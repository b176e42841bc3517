//! The format of a checkpoint, as described in docs/checkpoint-format.md.

use std::fmt;

use sha2::{Digest, Sha256};

use super::error::DamageReason;
use crate::PAGE;

/// Version written; readers accept it and older ones. Version 2 added the description, version 3 layers.
pub const VERSION: u32 = 3;
/// The oldest version that can be read.
const OLDEST: u32 = 1;
/// Bytes before the payload.
pub(super) const HEADER: u64 = PAGE as u64;
/// Bytes at the end.
pub(super) const TRAILER: u64 = 128;
pub(super) const MAGIC: [u8; 8] = *b"VMTAXCKP";
const END: [u8; 8] = *b"VMTAXEND";
/// Most pages compressed together.
pub(super) const GROUP: usize = 16;
/// Most deltas in a run: finding one adds the lengths of those before it.
pub(super) const DELTAS: usize = 64;
/// Most bytes of the index.
const INDEX: u64 = 8 << 30;
/// Most bytes of the description.
pub(super) const DESCRIPTION: u64 = 16 << 20;
/// Most bytes of a region's or parent's name.
const NAME: u64 = 4096;
/// Most layers in a file.
pub(super) const LAYERS: usize = 64;
/// Most pages of a machine (2^52 bytes).
const PAGES: u64 = 1 << 40;

/// Identifies a checkpoint: SHA-256 of its header, device state, description, index (which holds the checksums of pages) and
/// trailer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CheckpointId(pub [u8; 32]);

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// How pages of a run are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunKind {
    /// Uncompressed.
    Raw,
    /// All zero; only needed over a parent.
    Zero,
    /// One 8-byte word repeated.
    Fill(u64),
    /// Compressed together, into this many bytes.
    Zstd(u32),
    /// Deltas against the parent's pages.
    Xbzrle,
}

/// Consecutive pages that are stored in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageRun {
    pub(super) kind: RunKind,
    pub(super) first: u64,
    pub(super) count: u64,
    /// Offset of its payload in the file.
    pub(super) offset: u64,
    /// CRC-32C of each page's content; empty for `Zero` and `Fill`.
    pub(super) crcs: Vec<u32>,
    /// Length of each delta.
    pub(super) lengths: Vec<u16>,
}

impl PageRun {
    pub(super) fn end(&self) -> u64 {
        self.first + self.count
    }

    /// Bytes of payload.
    pub(super) fn payload(&self) -> u64 {
        match self.kind {
            RunKind::Raw => self.count * PAGE as u64,
            RunKind::Zero | RunKind::Fill(_) => 0,
            RunKind::Zstd(len) => u64::from(len),
            RunKind::Xbzrle => self.lengths.iter().map(|l| u64::from(*l)).sum(),
        }
    }
}

/// A block of memory by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) name: String,
    pub(super) pages: u64,
    /// At least one. A page in a layer replaces that page in earlier layers; the runs of a layer are ascending.
    pub(super) layers: Vec<Vec<PageRun>>,
}

/// Pages whose final content is in one run of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LayerPiece {
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) layer: u32,
    pub(super) run: u32,
}

impl Region {
    /// The valid parts for the stored pages, ascending.
    pub(super) fn pieces(&self) -> Vec<LayerPiece> {
        let mut pieces = Vec::new();
        for (layer, runs) in self.layers.iter().enumerate() {
            let layer = layer as u32;
            let above = runs.iter().zip(0..);
            let above =
                above.map(|(r, run)| LayerPiece { first: r.first, end: r.end(), layer, run });
            pieces = replaced(pieces, above);
        }
        pieces
    }
}

/// `below`, overlaid by `above`. Both are ascending.
fn replaced(below: Vec<LayerPiece>, above: impl Iterator<Item = LayerPiece>) -> Vec<LayerPiece> {
    let mut above = above.peekable();
    let mut pieces = Vec::with_capacity(below.len());
    for mut piece in below {
        // The last part above may cover several below.
        let covered = pieces.last().map_or(0, |last: &LayerPiece| last.end);
        piece.first = piece.first.max(covered);
        while piece.first < piece.end
            && let Some(top) = above.next_if(|top| top.first < piece.end)
        {
            if piece.first < top.first {
                pieces.push(LayerPiece { end: top.first, ..piece });
            }
            piece.first = piece.first.max(top.end);
            pieces.push(top);
        }
        if piece.first < piece.end {
            pieces.push(piece);
        }
    }
    pieces.extend(above);
    pieces
}

/// The index: regions, and the parent's file name when there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    pub(super) parent: String,
    pub(super) regions: Vec<Region>,
}

/// The trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trailer {
    pub(super) version: u32,
    pub(super) state_at: u64,
    pub(super) state_len: u64,
    /// 0 in version 1.
    pub(super) description_len: u64,
    pub(super) index_len: u64,
    /// Zeros: none.
    pub(super) parent: [u8; 32],
}

impl Trailer {
    pub(super) fn description_at(&self) -> u64 {
        self.state_at + self.state_len
    }

    pub(super) fn index_at(&self) -> u64 {
        self.description_at() + self.description_len
    }

    /// All but the id.
    pub(super) fn encode(&self) -> [u8; 96] {
        let mut bytes = [0; 96];
        bytes[..8].copy_from_slice(&END);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.state_at.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.state_len.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.index_len.to_le_bytes());
        bytes[40..72].copy_from_slice(&self.parent);
        bytes[72..80].copy_from_slice(&self.description_len.to_le_bytes());
        bytes
    }

    /// Reads one that ends a file of `file_len` bytes, whose header has this version.
    pub(super) fn decode(
        bytes: &[u8; 128],
        file_len: u64,
        version: u32,
    ) -> Result<(Trailer, CheckpointId), DamageReason> {
        let at = file_len - TRAILER;
        let damaged = |what| DamageReason::Damaged { at, what };
        if bytes[..8] != END {
            return Err(damaged(
                "the end of a checkpoint is missing; it was cut or never finished",
            ));
        }
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        // Version 1 has no description, and zeros here.
        let unused = if version == 1 { 72 } else { 80 };
        if bytes[8..12] != version.to_le_bytes()
            || bytes[12..16] != [0; 4]
            || bytes[unused..96].iter().any(|byte| *byte != 0)
        {
            return Err(damaged("the end has fields that are unknown"));
        }
        let mut parent = [0; 32];
        parent.copy_from_slice(&bytes[40..72]);
        let mut id = [0; 32];
        id.copy_from_slice(&bytes[96..]);
        let trailer = Trailer {
            version,
            state_at: word(16),
            state_len: word(24),
            description_len: word(72),
            index_len: word(32),
            parent,
        };
        let parts = [trailer.state_len, trailer.description_len, trailer.index_len];
        let sum = parts.iter().try_fold(trailer.state_at, |sum, part| sum.checked_add(*part));
        if sum != Some(at)
            || trailer.state_at < HEADER
            || trailer.index_len > INDEX
            || trailer.description_len > DESCRIPTION
        {
            return Err(damaged("the lengths of its parts do not add up to the file's"));
        }
        Ok((trailer, CheckpointId(id)))
    }
}

/// The id of a checkpoint with these parts: header, state, description, index, trailer, in this order.
#[derive(Default)]
pub(super) struct Naming(Sha256);

impl Naming {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn finish(self) -> CheckpointId {
        CheckpointId(self.0.finalize().into())
    }
}

/// The first page; `nonce` makes two checkpoints of the same memory different.
pub(super) fn header(nonce: [u8; 16]) -> [u8; HEADER as usize] {
    let mut bytes = [0; HEADER as usize];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(PAGE as u32).to_le_bytes());
    bytes[16..32].copy_from_slice(&nonce);
    bytes
}

/// Checks a first page, and gives its version.
pub(super) fn check_header(bytes: &[u8]) -> Result<u32, DamageReason> {
    if bytes.len() < 16 || bytes[..8] != MAGIC {
        return Err(DamageReason::NotOne);
    }
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let version = word(8);
    if !(OLDEST..=VERSION).contains(&version) {
        return Err(DamageReason::Version { found: version, newest: VERSION });
    }
    if word(12) != PAGE as u32 {
        return Err(DamageReason::Damaged {
            at: 12,
            what: "pages of another size than 4096 bytes",
        });
    }
    Ok(version)
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

impl Index {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.parent.len() as u64);
        out.extend_from_slice(self.parent.as_bytes());
        put(&mut out, self.regions.len() as u64);
        for region in &self.regions {
            put(&mut out, region.name.len() as u64);
            out.extend_from_slice(region.name.as_bytes());
            put(&mut out, region.pages);
        }
        let layers = self.regions.iter().map(|r| r.layers.len()).max().unwrap_or(0);
        put(&mut out, layers as u64);
        for layer in 0..layers {
            for region in &self.regions {
                let runs = region.layers.get(layer).map(Vec::as_slice).unwrap_or_default();
                put(&mut out, runs.len() as u64);
                let mut at = 0;
                for run in runs {
                    run.encode(at, &mut out);
                    at = run.end();
                }
            }
        }
        out
    }

    /// Decodes an index at offset `base` of a file of this version; payloads follow each other from the header's end to
    /// `payload_end`.
    pub(super) fn decode(
        bytes: &[u8],
        version: u32,
        base: u64,
        payload_end: u64,
    ) -> Result<Index, DamageReason> {
        let mut cursor = IndexCursor { bytes, at: 0, base };
        let parent = cursor.name()?;
        let mut regions = Vec::new();
        let mut offset = HEADER;
        for _ in 0..cursor.number(u64::from(u32::MAX), "the number of regions")? {
            let name = cursor.name()?;
            if regions.iter().any(|r: &Region| r.name == name) {
                return Err(cursor.damaged("two regions of one name"));
            }
            let pages = cursor.number(PAGES, "a region's pages")?;
            let layers = match version {
                1 | 2 => vec![cursor.runs(pages, &mut offset, payload_end)?],
                _ => Vec::new(),
            };
            regions.push(Region { name, pages, layers });
        }
        if version > 2 {
            for _ in 0..cursor.number(LAYERS as u64, "the number of layers")? {
                for region in &mut regions {
                    let runs = cursor.runs(region.pages, &mut offset, payload_end)?;
                    region.layers.push(runs);
                }
            }
        }
        if cursor.at != bytes.len() {
            return Err(cursor.damaged("bytes behind the last region"));
        }
        if offset != payload_end {
            return Err(cursor.damaged("payload that no run uses"));
        }
        Ok(Index { parent, regions })
    }
}

impl PageRun {
    fn encode(&self, at: u64, out: &mut Vec<u8>) {
        out.push(match self.kind {
            RunKind::Raw => 1,
            RunKind::Zero => 2,
            RunKind::Fill(_) => 3,
            RunKind::Zstd(_) => 4,
            RunKind::Xbzrle => 5,
        });
        put(out, self.first - at);
        put(out, self.count);
        match self.kind {
            RunKind::Fill(word) => out.extend(word.to_le_bytes()),
            RunKind::Zstd(len) => put(out, u64::from(len)),
            _ => {}
        }
        for crc in &self.crcs {
            out.extend(crc.to_le_bytes());
        }
        for length in &self.lengths {
            put(out, u64::from(*length));
        }
    }
}

/// Reads an index; every count is checked against the remaining bytes before it is used.
struct IndexCursor<'a> {
    bytes: &'a [u8],
    at: usize,
    base: u64,
}

impl IndexCursor<'_> {
    fn damaged(&self, what: &'static str) -> DamageReason {
        DamageReason::Damaged { at: self.base + self.at as u64, what }
    }

    fn take(&mut self, len: u64) -> Result<&[u8], DamageReason> {
        let left = self.bytes.len() - self.at;
        match usize::try_from(len) {
            Ok(len) if len <= left => {
                self.at += len;
                Ok(&self.bytes[self.at - len..self.at])
            }
            _ => Err(self.damaged("the index ends within an entry")),
        }
    }

    fn number(&mut self, limit: u64, what: &'static str) -> Result<u64, DamageReason> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return if value <= limit { Ok(value) } else { Err(self.damaged(what)) };
            }
        }
        Err(self.damaged(what))
    }

    fn name(&mut self) -> Result<String, DamageReason> {
        let len = self.number(NAME, "the length of a name")?;
        let bytes = self.take(len)?.to_owned();
        String::from_utf8(bytes).map_err(|_| self.damaged("a name that is no UTF-8"))
    }

    /// The runs of a region of `pages` in one layer. Payloads continue at `offset`.
    fn runs(
        &mut self,
        pages: u64,
        offset: &mut u64,
        payload_end: u64,
    ) -> Result<Vec<PageRun>, DamageReason> {
        let mut runs = Vec::new();
        let mut at = 0;
        for _ in 0..self.number(pages, "a region's runs")? {
            let run = self.run(at, pages, *offset)?;
            at = run.end();
            *offset += run.payload();
            if *offset > payload_end {
                return Err(self.damaged("a run whose bytes lie behind the payload"));
            }
            runs.push(run);
        }
        Ok(runs)
    }

    fn run(&mut self, at: u64, pages: u64, offset: u64) -> Result<PageRun, DamageReason> {
        let kind = self.take(1)?[0];
        let first = at + self.number(pages - at, "a run that begins behind its region")?;
        let count = self.number(pages - first, "a run that ends behind its region")?;
        if count == 0 {
            return Err(self.damaged("a run of no pages"));
        }
        let kind = match kind {
            1 => RunKind::Raw,
            2 => RunKind::Zero,
            3 => RunKind::Fill(u64::from_le_bytes(self.take(8)?.try_into().unwrap_or_default())),
            4 if count <= GROUP as u64 => {
                RunKind::Zstd(self.number(GROUP as u64 * PAGE as u64, "a compressed length")? as u32)
            }
            5 if count <= DELTAS as u64 => RunKind::Xbzrle,
            _ => return Err(self.damaged("a run of an unknown kind")),
        };
        let (mut crcs, mut lengths) = (Vec::new(), Vec::new());
        if !matches!(kind, RunKind::Zero | RunKind::Fill(_)) {
            let bytes = self.take(count * 4)?;
            crcs = bytes.as_chunks::<4>().0.iter().map(|c| u32::from_le_bytes(*c)).collect();
        }
        if kind == RunKind::Xbzrle {
            for _ in 0..count {
                lengths
                    .push(self.number(PAGE as u64, "a delta that is longer than its page")? as u16);
            }
        }
        Ok(PageRun { kind, first, count, offset, crcs, lengths })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> (Index, u64) {
        let mut offset = HEADER;
        let mut runs = Vec::new();
        let crcs = |n: u32| (0..n).map(|i| i * 77).collect::<Vec<u32>>();
        for (kind, first, count, crcs, lengths) in [
            (RunKind::Raw, 0, 3, crcs(3), vec![]),
            (RunKind::Zero, 3, 200, vec![], vec![]),
            (RunKind::Fill(7), 300, 1, vec![], vec![]),
            (RunKind::Zstd(123), 301, 16, crcs(16), vec![]),
            (RunKind::Xbzrle, 400, 2, crcs(2), vec![0, 4096]),
        ] {
            let run = PageRun { kind, first, count, offset, crcs, lengths };
            offset += run.payload();
            runs.push(run);
        }
        let mut again = Vec::new();
        for (kind, first, count, crcs) in
            [(RunKind::Raw, 1, 4, crcs(4)), (RunKind::Zero, 303, 2, vec![])]
        {
            let run = PageRun { kind, first, count, offset, crcs, lengths: vec![] };
            offset += run.payload();
            again.push(run);
        }
        let regions = vec![
            Region { name: "/objects/mem".into(), pages: 402, layers: vec![runs, again] },
            Region { name: "empty".into(), pages: 0, layers: vec![vec![], vec![]] },
        ];
        (Index { parent: "base.ckpt".into(), regions }, offset)
    }

    #[test]
    fn a_layer_replaces_what_it_covers() {
        let mut seed = 1u64;
        let mut below = |limit: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % limit
        };
        for _ in 0..2000 {
            let layers: Vec<Vec<PageRun>> = (0..1 + below(4))
                .map(|_| {
                    let (mut runs, mut at) = (Vec::new(), below(3));
                    while at < 24 {
                        let count = 1 + below(6);
                        let (crcs, lengths) = (vec![], vec![]);
                        runs.push(PageRun {
                            kind: RunKind::Zero,
                            first: at,
                            count,
                            offset: 0,
                            crcs,
                            lengths,
                        });
                        at += count + below(5);
                    }
                    runs
                })
                .collect();
            let region = Region { name: String::new(), pages: 32, layers };
            let mut expected = [None; 32];
            for (l, layer) in region.layers.iter().enumerate() {
                for (r, run) in layer.iter().enumerate() {
                    expected[run.first as usize..run.end() as usize]
                        .fill(Some((l as u32, r as u32)));
                }
            }
            let mut found = [None; 32];
            let mut last = 0;
            for piece in region.pieces() {
                assert!(last <= piece.first && piece.first < piece.end, "{region:?}");
                last = piece.end;
                found[piece.first as usize..piece.end as usize]
                    .fill(Some((piece.layer, piece.run)));
            }
            assert_eq!(found, expected, "{region:?}");
        }
    }

    #[test]
    fn an_index_comes_back() {
        let (index, end) = index();
        let bytes = index.encode();
        assert_eq!(Index::decode(&bytes, VERSION, 10, end).unwrap(), index);
        for len in 0..bytes.len() {
            assert!(Index::decode(&bytes[..len], VERSION, 10, end).is_err(), "{len}");
        }
        assert!(Index::decode(&bytes, VERSION, 10, end + 1).is_err());
        assert!(Index::decode(&bytes, VERSION, 10, end - 1).is_err());
    }
}
