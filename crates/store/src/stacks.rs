//! Profiles of a run: text files of folded stacks, a line each, which every flame graph tool reads.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use vmtax_events::{Profile, ProfileOrigin};

use crate::manifest::Segment;
use crate::segment;

/// Profiles larger than this are neither written nor read.
pub(crate) const MAX_BYTES: u64 = 512 << 20;

/// The file's text. A line break in a name would make two lines of one.
pub(crate) fn encode(profile: &Profile) -> Vec<u8> {
    let mut text = String::new();
    for (stack, weight) in &profile.stacks {
        text.extend(stack.chars().map(|c| if matches!(c, '\n' | '\r') { ' ' } else { c }));
        text.push_str(&format!(" {weight}\n"));
    }
    text.into_bytes()
}

/// Reads a listed file, or returns the problem.
pub(crate) fn read(path: &Path, listed: &Segment, place: ProfileOrigin) -> Result<Profile, String> {
    if listed.bytes > MAX_BYTES {
        return Err("is larger than 512 MiB".to_owned());
    }
    let mut file: File = segment::open_verified(path, listed)?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|e| format!("cannot be read: {e}"))?;
    let mut profile = Profile::new(place);
    for (number, line) in (1..).zip(text.lines()) {
        let parts = line.rsplit_once(' ').and_then(|(stack, n)| Some((stack, n.parse().ok()?)));
        let Some((stack, weight)) = parts else {
            return Err(format!("is damaged: line {number} is no stack with its weight"));
        };
        profile.add(stack, weight);
    }
    Ok(profile)
}
