//! The frames of a process: which guest-physical pages of 4 KiB a kernel gave it, in the order of its addresses, the largest mapping first.
//!
//! A file has the header `frame,pages` and a line for each part: its first frame, and how many frames come one after the other.

use std::fmt::Write as _;
use std::path::Path;

use vmtax_durable::read_small_text;

use crate::Error;

const HEADER: &str = "frame,pages";
/// MiB of guest-physical memory over which frames can be.
const ROOM_MIB: u64 = 60 << 10;
/// Frames of 4 KiB in a MiB.
const OF_A_MIB: u64 = 256;
/// Bytes of a file.
const MOST_FILE: u64 = 4 << 20;

/// Where the frames of operations are that are scattered over 24 GiB by their names.
#[derive(Clone, Debug)]
pub enum Frames {
    /// Scattered over so many MiB.
    Within(u32),
    /// A process's.
    Of(FrameLayout),
}

/// Frames of a process, in the order of its pages of 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameLayout {
    /// The file.
    pub name: String,
    frames: Vec<u32>,
}

impl FrameLayout {
    /// Most frames that an operation uses: those of 64 MiB.
    pub const MOST: usize = 16_384;
    /// Frames from this one on are beyond what a guest of the lab has.
    pub const BEYOND: u64 = ROOM_MIB * OF_A_MIB;

    /// # Errors
    /// When the file cannot be read, or has other contents.
    pub fn read(path: &Path) -> Result<FrameLayout, Error> {
        let text = read_small_text(path, MOST_FILE).map_err(Error::io(path, "read the frames"))?;
        let frames = frames(&text);
        let frames = frames.map_err(|problem| Error::Program { path: path.to_owned(), problem })?;
        Ok(FrameLayout { name: path.display().to_string(), frames })
    }

    /// As a file has them.
    pub fn text(frames: &[u64]) -> String {
        let mut text = format!("{HEADER}\n");
        for part in frames.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
            let _ = writeln!(text, "{},{}", part[0], part.len());
        }
        text
    }

    /// The first frames, for so many bytes, and the MiB over which they are.
    pub(crate) fn of(&self, bytes: u32) -> Result<(Vec<u32>, u32), Error> {
        let pages = bytes as usize / 4096;
        let frames = self.frames.get(..pages).ok_or_else(|| Error::Program {
            path: self.name.clone().into(),
            problem: format!(
                "has {} frames, and an operation of the run has {pages}",
                self.frames.len()
            ),
        })?;
        let last = frames.iter().max().map_or(0, |last| u64::from(*last) + 1);
        Ok((frames.to_vec(), last.div_ceil(OF_A_MIB) as u32))
    }
}

fn frames(text: &str) -> Result<Vec<u32>, String> {
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return Err(format!(
            "does not begin with the line {HEADER}; `vmtax lab layout PID` writes such a file"
        ));
    }
    let mut frames = Vec::new();
    for (number, line) in (2..).zip(lines) {
        let fields = line.split_once(',').and_then(|(frame, pages)| {
            Some((frame.parse::<u64>().ok()?, pages.parse::<u64>().ok()?))
        });
        let Some((first, pages)) = fields.filter(|(_, pages)| *pages > 0) else {
            return Err(format!("line {number} is no first frame and number of frames"));
        };
        let end = first.checked_add(pages).filter(|end| *end <= FrameLayout::BEYOND);
        let Some(end) = end else {
            return Err(format!(
                "line {number} has frames beyond {} GiB, which no guest of the lab has",
                ROOM_MIB >> 10
            ));
        };
        if frames.len() as u64 + pages > FrameLayout::MOST as u64 {
            return Err(format!("line {number}: has more than {} frames", FrameLayout::MOST));
        }
        frames.extend((first as u32)..(end as u32));
    }
    let mut once = frames.clone();
    once.sort_unstable();
    if let Some(twice) = once.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("has frame {} twice", twice[0]));
    }
    Ok(frames)
}

#[cfg(feature = "fuzz")]
pub(super) fn check(text: &str) {
    match frames(text) {
        Ok(all) => {
            let again: Vec<u64> = all.iter().copied().map(u64::from).collect();
            assert_eq!(frames(&FrameLayout::text(&again)), Ok(all));
        }
        Err(problem) => assert!(!problem.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::{FrameLayout, frames};

    #[test]
    fn frames_are_read_as_they_are_written() {
        let all = [7, 8, 9, 300, 299, 512, 513];
        let text = FrameLayout::text(&all);
        assert_eq!(text, "frame,pages\n7,3\n300,1\n299,1\n512,2\n");
        assert_eq!(frames(&text), Ok(all.map(|frame| frame as u32).to_vec()));
    }

    #[test]
    fn other_contents_are_refused() {
        for (text, said) in [
            ("", "does not begin with the line frame,pages"),
            ("frame\n1\n", "does not begin"),
            ("frame,pages\n1\n", "line 2 is no first frame"),
            ("frame,pages\n1,0\n", "line 2 is no first frame"),
            ("frame,pages\n1,1\n-1,1\n", "line 3 is no first frame"),
            ("frame,pages\n18446744073709551615,1\n", "line 2 has frames beyond 60 GiB"),
            ("frame,pages\n15728640,1\n", "line 2 has frames beyond 60 GiB"),
            ("frame,pages\n0,16384\n20000,1\n", "line 3: has more than 16384 frames"),
            ("frame,pages\n1,3\n2,1\n", "has frame 2 twice"),
        ] {
            let problem = frames(text).unwrap_err();
            assert!(problem.contains(said), "{text:?}: {problem}");
        }
    }
}
