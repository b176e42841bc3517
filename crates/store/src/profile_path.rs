//! Where a run has its profiles.

use vmtax_events::ProfileOrigin;

/// Folder of the profiles inside the run.
pub(crate) const FOLDER: &str = "stacks";
/// Path inside the run.
pub(crate) fn path(place: ProfileOrigin) -> String {
    format!("{FOLDER}/{}.folded", place.name())
}

/// The place of a listed path: `Err` for a path that no run has, `Ok(None)` for a place unknown to this version.
pub(crate) fn place(path: &str) -> Result<Option<ProfileOrigin>, ()> {
    let name = path.strip_prefix(FOLDER).and_then(|rest| rest.strip_prefix('/')).ok_or(())?;
    let name = name.strip_suffix(".folded").ok_or(())?;
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_lowercase()) {
        return Err(());
    }
    Ok(ProfileOrigin::from_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_places_and_never_out_of_the_run() {
        for one in ProfileOrigin::ALL {
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
