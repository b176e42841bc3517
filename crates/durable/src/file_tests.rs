use std::env;
use std::process::Command;

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A file as on a file system that has no nameless ones.
fn with_a_name(target: &Path) -> NewFile {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    NewFile::named(&mut options, target).expect("a file")
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("a");
    for create in [|t: &Path| NewFile::create(t, FileAccess::Private).expect("a file"), with_a_name]
    {
        for content in ["one", "two"] {
            let new = create(&target);
            new.file().write_all(content.as_bytes()).expect("written");
            assert_ne!(fs::read(&target).ok().as_deref(), Some(content.as_bytes()));
            new.publish().expect("published");
            assert_eq!(fs::read(&target).expect("read"), content.as_bytes());
            drop(create(&target));
            assert_eq!(names(folder.path()), ["a"]);
        }
        fs::remove_file(&target).expect("removed");
        drop(create(&target).publish_revocably().expect("published"));
        assert_eq!(names(folder.path()), [""; 0]);
    }
}

/// Two writers of one file at once: one of them wins, none fails, and nothing is mixed.
#[test]
fn writers_of_one_file_do_not_disturb_each_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("a");
    let contents = ["one", "two", "three", "four"];
    for create in [|t: &Path| NewFile::create(t, FileAccess::Private).expect("a file"), with_a_name]
    {
        std::thread::scope(|scope| {
            for content in contents {
                let target = &target;
                scope.spawn(move || {
                    for _ in 0..50 {
                        let new = create(target);
                        new.file().write_all(content.as_bytes()).expect("written");
                        new.publish().expect("published");
                        let found = fs::read_to_string(target).expect("read");
                        assert!(contents.contains(&found.as_str()), "{found:?}");
                    }
                });
            }
        });
        assert_eq!(names(folder.path()), ["a"]);
    }
}

#[test]
fn temporary_names_of_killed_writers_are_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("a");
    let living = with_a_name(&target);
    fs::write(folder.path().join(".a.00112233aabbccdd.tmp"), "left").expect("written");
    fs::write(folder.path().join(".a.mine.tmp"), "foreign").expect("written");
    write(&target, FileAccess::Private, b"1").expect("written");
    // The first writer found no file to replace, and so needed no temporary name.
    write(&target, FileAccess::Private, b"2").expect("written");
    let left = names(folder.path());
    assert!(!left.contains(&".a.00112233aabbccdd.tmp".to_owned()), "{left:?}");
    assert!(left.contains(&".a.mine.tmp".to_owned()), "{left:?}");
    living.publish().expect("published");
    assert_eq!(names(folder.path()), [".a.mine.tmp", "a"]);
}

/// As root a rename over /dev/null would succeed.
#[test]
fn devices_pipes_sockets_and_folders_are_not_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
    for target in [&socket, folder.path(), Path::new("/dev/null"), Path::new("/"), Path::new("")] {
        assert!(write(target, FileAccess::Private, b"1").is_err(), "{}", target.display());
    }
    assert_eq!(names(folder.path()), ["socket"]);
}

#[test]
fn names_as_long_as_they_can_be() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("x".repeat(255));
    for _ in 0..2 {
        write(&target, FileAccess::Umask, b"1").expect("written");
        with_a_name(&target).publish().expect("published");
    }
    assert_eq!(names(folder.path()).len(), 1);
}

const CHILD: &str = "VMTAX_DURABLE_TEST_UMASK";

/// Not a test of its own: writes under the umask that [`modes`] sets.
#[test]
fn child() {
    let Some(folder) = env::var_os(CHILD).map(PathBuf::from) else { return };
    write(&folder.join("private"), FileAccess::Private, b"").expect("written");
    for name in ["new", "old"] {
        write(&folder.join(name), FileAccess::Umask, b"").expect("written");
    }
}

#[test]
fn modes() {
    for umask in ["000", "022", "077", "027"] {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("old"), "").expect("written");
        fs::set_permissions(folder.path().join("old"), Permissions::from_mode(0o604)).expect("set");
        let status = Command::new("sh")
            .args([
                "-c",
                &format!(
                    "umask {umask} && : >\"$0\"/shell && exec \"$1\" --exact file::tests::child"
                ),
            ])
            .args([folder.path(), &env::current_exe().expect("this program")])
            .env(CHILD, folder.path())
            .status()
            .expect("a shell");
        assert!(status.success());
        let mode = |name: &str| {
            let found = fs::metadata(folder.path().join(name)).expect("written");
            found.permissions().mode() & 0o777
        };
        assert_eq!(mode("private"), 0o600, "umask {umask}");
        assert_eq!(mode("new"), mode("shell"), "umask {umask}");
        assert_eq!(mode("old"), 0o604, "umask {umask}");
    }
}
