//! Decompression of sections and of chunks of trace data.
//!
//! Both have the same head: the compressed size and the uncompressed size, 32 bits each.

use flate2::{Decompress, FlushDecompress, Status};
use zstd::bulk::Decompressor;

/// The most that one section or chunk may decompress to. trace-cmd writes chunks of ten pages; this
/// leaves room for the largest sub-buffers a kernel can be given.
pub(super) const MAX_CHUNK: u64 = 64 << 20;

/// How the file's sections and chunks are compressed, with the state that is used again for each.
pub(super) enum Codec {
    /// Nothing is compressed.
    None,
    /// zstd.
    Zstd(Decompressor<'static>),
    /// zlib (with its header).
    Zlib(Box<Decompress>),
}

impl Codec {
    /// By the name in the header of the file.
    pub(super) fn new(name: &str) -> Result<Codec, String> {
        match name {
            "none" | "" => Ok(Codec::None),
            "zstd" => Decompressor::new().map(Codec::Zstd).map_err(|e| e.to_string()),
            "zlib" => Ok(Codec::Zlib(Box::new(Decompress::new(true)))),
            other => Err(format!("compression algorithm {other:?} is not supported")),
        }
    }

    /// Another one for the same data, for another thread.
    pub(super) fn another(&self) -> Result<Codec, String> {
        Codec::new(match self {
            Codec::None => "none",
            Codec::Zstd(_) => "zstd",
            Codec::Zlib(_) => "zlib",
        })
    }

    /// Replaces `out` by the `size` bytes that `input` holds.
    pub(super) fn decompress(
        &mut self,
        input: &[u8],
        size: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        out.clear();
        if size > MAX_CHUNK || size > self.most(input.len() as u64) {
            return Err(format!("{} bytes cannot hold the claimed {size}", input.len()));
        }
        let size = usize::try_from(size).map_err(|e| e.to_string())?;
        out.reserve_exact(size);
        match self {
            Codec::None => return Err("it is compressed, but the file names no algorithm".into()),
            Codec::Zstd(zstd) => {
                // The capacity may be larger than requested: the exact size is checked below.
                zstd.decompress_to_buffer(input, out).map_err(|e| e.to_string())?;
            }
            Codec::Zlib(zlib) => {
                zlib.reset(true);
                let end = zlib.decompress_vec(input, out, FlushDecompress::Finish);
                if end.map_err(|e| e.to_string())? != Status::StreamEnd {
                    return Err("the zlib stream does not end where it should".into());
                }
            }
        }
        if out.len() != size {
            return Err(format!("decompresses to {} bytes, not to {size}", out.len()));
        }
        Ok(())
    }

    /// An upper bound of what `len` compressed bytes can become, to refuse absurd claims before
    /// memory is given out: a zstd block of 4 bytes gives at most 128 KiB, deflate 1032:1.
    fn most(&self, len: u64) -> u64 {
        match self {
            Codec::None => len,
            Codec::Zstd(_) => (len / 4 + 1).saturating_mul(128 << 10),
            Codec::Zlib(_) => len.saturating_mul(1032).saturating_add(1032),
        }
    }
}
