//! Profiles of a run: text files of folded stacks, a line each, which every flame graph tool reads.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use vmtax_events::{Place, Profile};

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
pub(crate) fn read(path: &Path, listed: &Segment, place: Place) -> Result<Profile, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_places_and_never_out_of_the_run() {
        for one in Place::ALL {
            assert_eq!(place(&path(one)), Ok(Some(one)));
        }
        assert_eq!(place("stacks/vmm.folded"), Ok(None));
        for path in [
            "",
            "stacks",
            "stacks/",
            "stacks/.folded",
            "stacks/../x.folded",
            "stacks/a/b.folded",
            "/etc/passwd",
        ] {
            assert_eq!(place(path), Err(()), "{path:?}");
        }
    }
}
