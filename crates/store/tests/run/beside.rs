//! Counters and profiles: what belongs to a run beside its rows.

use std::fs;

use vmtax_events::{
    AccessRow, ExitRow, Losses, Profile, ProfileOrigin, Recording, RowSink, Stat, TimeRow,
};
use vmtax_store::{Run, RunWriter};

use crate::samples::options;

#[derive(Default)]
struct WriterBeside {
    stats: Vec<Stat>,
    profiles: Vec<Profile>,
}

impl RowSink for WriterBeside {
    fn exit(&mut self, _row: &ExitRow) {}
    fn access(&mut self, _row: &AccessRow) {}
    fn time(&mut self, _row: &TimeRow) {}

    fn stat(&mut self, stat: &Stat) {
        self.stats.push(stat.clone());
    }

    fn profile(&mut self, profile: Profile) {
        self.profiles.push(profile);
    }
}

fn stats() -> Vec<Stat> {
    let stat = |vm, name: &str, value| Stat {
        time_ns: u64::MAX,
        vm,
        name: name.to_owned(),
        unit: "pages".to_owned(),
        value,
    };
    vec![stat(0, "pages_4k", 1.5), stat(Stat::HOST, "\u{1b}[31m\n", f64::MAX)]
}

fn profile(place: ProfileOrigin) -> Profile {
    let mut profile = Profile::new(place);
    profile.add("main;a b;c", 1);
    profile.add("main;übel;[kernel]", u64::MAX);
    profile
}

fn read(folder: &std::path::Path) -> (WriterBeside, vmtax_store::ReadReport) {
    let mut beside = WriterBeside::default();
    let report = Run::open(folder).unwrap().read(&mut beside).unwrap();
    (beside, report)
}

#[test]
fn counters_and_profiles_come_out_as_they_went_in() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    let mut writer = RunWriter::create(&folder, &options()).unwrap();
    stats().iter().for_each(|stat| writer.stat(stat).unwrap());
    ProfileOrigin::ALL.iter().for_each(|place| writer.profile(profile(*place)));
    // Segments in between do not lose them.
    writer.segment().unwrap();
    writer.finish(&Recording::default(), &Losses::default()).unwrap();
    let (beside, report) = read(&folder);
    assert_eq!(beside.stats, stats());
    assert_eq!(beside.profiles, ProfileOrigin::ALL.map(profile));
    assert_eq!((report.losses, report.damaged), (Losses::default(), 0));
    // Without any there is no such folder.
    let bare = temp.path().join("bare");
    let writer = RunWriter::create(&bare, &options()).unwrap();
    writer.finish(&Recording::default(), &Losses::default()).unwrap();
    assert!(!bare.join("stacks").exists() && !bare.join("stats").exists());
}

#[test]
fn profiles_of_one_place_are_added_up() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    let mut writer = RunWriter::create(&folder, &options()).unwrap();
    for weight in [3, 4] {
        let mut profile = Profile::new(ProfileOrigin::Host);
        profile.add("a;b", weight);
        writer.profile(profile);
    }
    writer.finish(&Recording::default(), &Losses::default()).unwrap();
    let text = fs::read_to_string(folder.join("stacks/host.folded")).unwrap();
    assert_eq!(text, "a;b 7\n");
}

/// A damaged profile is a reported loss, never a partial profile.
#[test]
fn damaged_profiles() {
    let temp = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        let folder = temp.path().join(name);
        let mut writer = RunWriter::create(&folder, &options()).unwrap();
        writer.profile(profile(ProfileOrigin::Host));
        writer.finish(&Recording::default(), &Losses::default()).unwrap();
        folder
    };
    type Damage = fn(&std::path::Path);
    let damages: [(&str, Damage, &str); 4] = [
        ("cut", |file| fs::write(file, "main;a b;c 1\n").unwrap(), "is damaged: it has 13 bytes"),
        ("gone", |file| fs::remove_file(file).unwrap(), "cannot be read"),
        (
            "link",
            |file| {
                fs::remove_file(file).unwrap();
                std::os::unix::fs::symlink("/etc/passwd", file).unwrap();
            },
            "is not a regular file",
        ),
        (
            "flipped",
            |file| {
                let mut bytes = fs::read(file).unwrap();
                bytes[0] ^= 1;
                fs::write(file, bytes).unwrap();
            },
            "is damaged: its checksum",
        ),
    ];
    for (name, damage, expected) in damages {
        let folder = write(name);
        damage(&folder.join("stacks/host.folded"));
        let (beside, report) = read(&folder);
        assert_eq!((beside.profiles.len(), report.damaged), (0, 1), "{name}");
        assert!(report.losses.truncated[0].contains(expected), "{:?}", report.losses.truncated);
    }
    // A path that would lead out of the run is refused with the manifest.
    let folder = write("hostile");
    let manifest = fs::read_to_string(folder.join("run.json")).unwrap();
    fs::write(folder.join("run.json"), manifest.replace("stacks/host.folded", "stacks/../../x"))
        .unwrap();
    assert!(Run::open(&folder).is_err());
}
