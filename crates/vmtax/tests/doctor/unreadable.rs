//! Files that cannot be read, or are not what they should be: no panic, no waiting, no wrong "ok".

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use vmtax_analyse::audit::{AuditFinding, CheckVerdict};

use crate::root::{MadeRoot, findings, place};

/// What becomes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileDamage {
    Folder,
    Pipe,
    Bytes,
    LongLine,
    LinkLoop,
    LinkOut,
    Socket,
}

const ALL: [FileDamage; 7] = [
    FileDamage::Folder,
    FileDamage::Pipe,
    FileDamage::Bytes,
    FileDamage::LongLine,
    FileDamage::LinkLoop,
    FileDamage::LinkOut,
    FileDamage::Socket,
];

fn damage(path: &Path, how: FileDamage, outside: &Path) {
    fs::remove_file(path).unwrap();
    match how {
        FileDamage::Folder => fs::create_dir(path).unwrap(),
        FileDamage::Pipe => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        FileDamage::Bytes => fs::write(path, b"\xff\xfe\x00\x80\n").unwrap(),
        FileDamage::LongLine => {
            let long = outside.with_file_name("long");
            if !long.exists() {
                fs::write(&long, vec![b'1'; 10 << 20]).unwrap();
            }
            fs::hard_link(long, path).unwrap();
        }
        FileDamage::LinkLoop => symlink(path.file_name().unwrap(), path).unwrap(),
        FileDamage::LinkOut => symlink(outside, path).unwrap(),
        FileDamage::Socket => drop(std::os::unix::net::UnixListener::bind(path).unwrap()),
    }
}

fn audit(host: &Path, guest: &Path) -> Vec<AuditFinding> {
    findings(&vmtax_host::system(host).unwrap(), Some(guest))
}

/// The checks that are as they were though a file that they rest on cannot be read: it says only what else is so.
const STAY: &[(&str, &str)] = &[
    // The microcode's number is shown beside the kernel's verdict.
    ("microcode", "/proc/cpuinfo"),
    // The governor is shown beside the driver.
    ("guest-haltpoll", "/sys/devices/system/cpu/cpuidle/current_governor"),
    // The processors' defect matters where the split is on.
    ("nx-huge-pages", "/sys/devices/system/cpu/vulnerabilities/itlb_multihit"),
];

/// Every file of the good systems in turn, damaged in every way: a check that rests on it says "unknown", all
/// others say what they said.
#[test]
fn a_file_that_cannot_be_read_makes_its_checks_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    fs::write(&outside, "Y\n").unwrap();
    let (mut wrong, mut tried) = (Vec::new(), BTreeSet::new());
    for (name, host) in [("intel", MadeRoot::intel()), ("amd", MadeRoot::amd())] {
        let guest = MadeRoot::guest();
        let (at_host, at_guest) =
            (folder.path().join(name), folder.path().join(format!("{name}-guest")));
        host.write(&at_host);
        guest.write(&at_guest);
        let before: BTreeMap<_, _> =
            audit(&at_host, &at_guest).into_iter().map(|f| (f.check.id.name(), f.found)).collect();
        let of_host = host.paths().map(|path| (path.to_owned(), &at_host));
        let of_guest = guest.paths().map(|path| (path.to_owned(), &at_guest));
        for (path, at) in of_host.chain(of_guest) {
            // Threads and counters are read into one fact; their damage has a test of its own.
            if path.contains("/task/")
                || path.contains("/kernel/debug/kvm/")
                || path.ends_with("/comm")
            {
                continue;
            }
            let file = place(at, &path);
            let text = fs::read(&file).unwrap();
            for how in ALL {
                // A command line is of any bytes, and smaps may name files so.
                let is_text = !path.contains("/4711/");
                if how == FileDamage::Bytes && !is_text {
                    continue;
                }
                damage(&file, how, &outside);
                for finding in audit(&at_host, &at_guest) {
                    let id = finding.check.id.name();
                    let was = &before[id];
                    let rests = was.evidence.iter().any(|fact| fact.path == path)
                        && (finding.check.place() == "guest") == (at == &at_guest);
                    let now = finding.found.verdict;
                    if rests && was.verdict == CheckVerdict::Ok {
                        tried.insert(id);
                        let expected = if STAY.contains(&(id, path.as_str())) {
                            CheckVerdict::Ok
                        } else {
                            CheckVerdict::Unknown
                        };
                        if now != expected {
                            wrong.push(format!("{name} {path} {how:?}: {id} {now:?}"));
                        }
                    } else if now == CheckVerdict::Ok && was.verdict != CheckVerdict::Ok {
                        wrong.push(format!("{name} {path} {how:?}: {id} became ok"));
                    }
                }
                if file.symlink_metadata().unwrap().is_dir() {
                    fs::remove_dir(&file).unwrap();
                } else {
                    fs::remove_file(&file).unwrap();
                }
                fs::write(&file, &text).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(tried.len() > 25, "{tried:?}");
}

/// Threads and counters of a VM.
#[test]
fn a_vm_that_cannot_be_read_has_unknown_verdicts() {
    for (path, checks) in [
        ("/proc/4711/task/4712/status", &["vcpu-pinning"][..]),
        ("/proc/4711/smaps", &["thp-backing", "thp-shmem"]),
        ("/proc/4711/numa_maps", &["numa"]),
        ("/proc/4711/cmdline", &["vhost", "ioeventfd", "iothread", "private-pages"]),
        ("/sys/kernel/debug/kvm/4711-11/pages_2m", &["mapped-pages"]),
    ] {
        for how in ALL {
            let folder = tempfile::tempdir().unwrap();
            let outside = folder.path().join("outside");
            fs::write(&outside, "1\n").unwrap();
            let host = folder.path().join("host");
            MadeRoot::intel().write(&host);
            if how == FileDamage::Bytes && path.ends_with("cmdline") {
                continue;
            }
            damage(&place(&host, path), how, &outside);
            for finding in findings(&vmtax_host::system(&host).unwrap(), None) {
                if checks.contains(&finding.check.id.name()) {
                    let verdict = finding.found.verdict;
                    // A thread that ends while it is looked at is no thread: the other vCPU is pinned still.
                    let expected = if path.contains("/task/") {
                        CheckVerdict::Ok
                    } else {
                        CheckVerdict::Unknown
                    };
                    assert_eq!(verdict, expected, "{path} {how:?} {}", finding.check.id.name());
                }
            }
        }
    }
}

/// An archive from elsewhere: links inside it are links inside it.
#[test]
fn links_out_of_the_root_show_nothing_of_the_outside() {
    let folder = tempfile::tempdir().unwrap();
    let (host, outside) = (folder.path().join("host"), folder.path().join("outside"));
    MadeRoot::intel().write(&host);
    fs::create_dir_all(outside.join("parameters")).unwrap();
    fs::write(outside.join("parameters/halt_poll_ns"), "31337\n").unwrap();
    let kvm = host.join("sys/module/kvm");
    fs::remove_dir_all(&kvm).unwrap();
    symlink(&outside, &kvm).unwrap();
    let system = vmtax_host::system(&host).unwrap();
    assert!(!format!("{system:?}").contains("31337"));
    // With the same folder inside, the same link leads there.
    let inside = place(&host, &format!("{}/parameters/halt_poll_ns", outside.display()));
    fs::write(inside, "4242\n").unwrap();
    let system = vmtax_host::system(&host).unwrap();
    let value = system.settings.text("/sys/module/kvm/parameters/halt_poll_ns");
    // A kernel that cannot resolve inside a root has links refused.
    assert!(
        value == Ok("4242") || value == Err(vmtax_events::setting::Unknown::NotAFile),
        "{value:?}"
    );
}
