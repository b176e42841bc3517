//! The folder that is looked at as a system's root. Paths and links are resolved inside it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{self, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use vmtax_events::setting::{Known, Unknown};

/// Most bytes of a text: the longest is `/proc/cpuinfo`, 1.5 KiB for each CPU.
pub(crate) const TEXT: u64 = 4 << 20;
/// Most bytes of a line: paths in the kernel's files have up to 4 KiB.
const LINE: usize = 16 << 10;
/// Most names read of a folder.
const NAMES: usize = 1 << 20;

/// An open root.
#[derive(Debug)]
pub(crate) struct Root {
    dir: OwnedFd,
    /// The kernel resolves links inside the root. Where it cannot (before Linux 5.6, or a sandbox refuses),
    /// links are refused.
    resolves: bool,
}

impl Root {
    pub(crate) fn open(path: &Path) -> io::Result<Root> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = fs::open(path, flags, Mode::empty())?;
        let resolves = fs::openat2(&dir, ".", flags, Mode::empty(), RESOLVE).is_ok();
        Ok(Root { dir, resolves })
    }

    /// Opens a file of any type.
    fn handle(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = path.trim_start_matches('/');
        let path = if path.is_empty() { "." } else { path };
        let flags = flags | OFlags::CLOEXEC;
        if self.resolves {
            // EAGAIN: something was renamed meanwhile.
            return retry(|| fs::openat2(&self.dir, path, flags, Mode::empty(), RESOLVE));
        }
        let mut folder = fs::openat(&self.dir, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let mut components = path.split('/').peekable();
        while let Some(component) = components.next() {
            if component == ".." {
                return Err(Errno::LOOP);
            }
            if components.peek().is_none() {
                return fs::openat(&folder, component, flags | OFlags::NOFOLLOW, Mode::empty());
            }
            let inner = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            folder = fs::openat(&folder, component, inner, Mode::empty())?;
        }
        Err(Errno::NOENT)
    }

    /// Opens a regular file. Its type is checked before: opening a pipe can wait forever, and
    /// opening a device can do anything.
    fn file(&self, path: &str) -> Known<File> {
        let found = self.handle(path, OFlags::PATH).map_err(|error| self.why(path, error))?;
        let stat = fs::fstat(&found).map_err(why)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Unknown::NotAFile);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        self.handle(path, flags).map(File::from).map_err(why)
    }

    /// Why a path cannot be opened. A link on the way that leads nowhere is not the same as nothing: something
    /// was meant to be there.
    fn why(&self, path: &str, error: Errno) -> Unknown {
        let found = why(error);
        if found != Unknown::Missing {
            return found;
        }
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
        for end in ends {
            let Ok(part) = self.handle(&path[..end], OFlags::PATH | OFlags::NOFOLLOW) else {
                break;
            };
            let is_link = fs::fstat(&part)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
            if is_link && (!self.resolves || self.handle(&path[..end], OFlags::PATH).is_err()) {
                return Unknown::NotAFile;
            }
        }
        found
    }

    /// All of a file that has at most `limit` bytes.
    pub(crate) fn bytes(&self, path: &str, limit: u64) -> Known<Vec<u8>> {
        let file = self.file(path)?;
        let mut bytes = Vec::new();
        let read = file.take(limit.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| of_io(&error))?;
        if bytes.len() as u64 > limit { Err(Unknown::TooLong) } else { Ok(bytes) }
    }

    /// The same as text.
    pub(crate) fn text(&self, path: &str, limit: u64) -> Known<String> {
        String::from_utf8(self.bytes(path, limit)?).map_err(|_| Unknown::NotText)
    }

    /// Hands on the lines of a file one by one, up to `limit` bytes in all.
    pub(crate) fn lines(&self, path: &str, limit: u64, mut each: impl FnMut(&str)) -> Known<()> {
        let mut file = BufReader::new(self.file(path)?.take(limit));
        let mut line = Vec::new();
        loop {
            line.clear();
            let got = (&mut file).take(LINE as u64).read_until(b'\n', &mut line);
            match got.map_err(|error| of_io(&error))? {
                0 if file.get_ref().limit() == 0 => return Err(Unknown::TooLong),
                0 => return Ok(()),
                LINE if line.last() != Some(&b'\n') => return Err(Unknown::TooLong),
                // A path in it may be of any bytes; they do not matter.
                _ => each(String::from_utf8_lossy(&line).trim_end()),
            }
        }
    }

    /// The names in a folder.
    pub(crate) fn names(&self, path: &str) -> Known<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        let folder = self.handle(path, flags).map_err(|error| self.why(path, error))?;
        let mut names = Vec::new();
        for entry in Dir::new(folder).map_err(why)?.take(NAMES) {
            let entry = entry.map_err(why)?;
            if let Ok(name) = entry.file_name().to_str()
                && name != "."
                && name != ".."
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// The target of a link, without following it.
    pub(crate) fn link(&self, path: &str) -> Known<String> {
        let (folder, name) = path.rsplit_once('/').ok_or(Unknown::Missing)?;
        let folder = self.handle(folder, OFlags::PATH | OFlags::DIRECTORY).map_err(why)?;
        let target = fs::readlinkat(&folder, name, Vec::new()).map_err(why)?;
        target.into_string().map_err(|_| Unknown::NotText)
    }
}

const RESOLVE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

fn retry(mut open: impl FnMut() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    for _ in 0..8 {
        match open() {
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return done,
        }
    }
    open()
}

fn why(error: Errno) -> Unknown {
    match error {
        // A process that is gone answers so.
        Errno::NOENT | Errno::SRCH => Unknown::Missing,
        Errno::NOTDIR => Unknown::Missing,
        Errno::ACCESS | Errno::PERM => Unknown::Denied,
        Errno::LOOP | Errno::XDEV | Errno::ISDIR | Errno::NXIO => Unknown::NotAFile,
        other => Unknown::Failed(io::Error::from(other).to_string()),
    }
}

fn of_io(error: &io::Error) -> Unknown {
    match Errno::from_io_error(error) {
        Some(errno) => why(errno),
        None => Unknown::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn roots(path: &Path) -> [Root; 2] {
        let root = Root::open(path).unwrap();
        let refuses = Root { dir: Root::open(path).unwrap().dir, resolves: false };
        [root, refuses]
    }

    /// Links never leave the root: they are resolved inside it, or refused where the kernel cannot.
    #[test]
    fn no_link_leads_out_of_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("root");
        fs::create_dir_all(inside.join("etc")).unwrap();
        fs::write(folder.path().join("secret"), "outside").unwrap();
        fs::write(inside.join("etc/name"), "inside").unwrap();
        let outside = folder.path().join("secret");
        for (name, target) in [
            ("absolute", outside.to_str().unwrap()),
            ("relative", "../secret"),
            ("deep", "../../../../../../../../etc/name"),
            ("rooted", "/etc/name"),
            ("loop", "loop"),
        ] {
            symlink(target, inside.join(name)).unwrap();
        }
        symlink("/", inside.join("all")).unwrap();
        let [resolves, refuses] = roots(&inside);
        for root in [&resolves, &refuses] {
            assert_eq!(root.text("/etc/name", 100), Ok("inside".to_owned()));
            for path in ["/absolute", "/relative", "/all/../../secret", "/../secret"] {
                assert!(root.text(path, 100).is_err(), "{path}");
            }
            for path in ["/loop", "/relative", "/all/../../secret"] {
                let found = root.text(path, 100);
                let expected = if path.starts_with("/all") && root.resolves {
                    Unknown::Missing
                } else {
                    Unknown::NotAFile
                };
                assert_eq!(found, Err(expected), "{path}");
            }
        }
        for path in ["/deep", "/rooted", "/all/etc/name"] {
            if resolves.resolves {
                assert_eq!(resolves.text(path, 100), Ok("inside".to_owned()), "{path}");
            }
            assert!(refuses.text(path, 100).is_err(), "{path}");
        }
        assert_eq!(refuses.names("/").unwrap().len(), resolves.names("/").unwrap().len());
    }

    #[test]
    fn only_files_of_a_sensible_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("folder")).unwrap();
        fs::write(path("bytes"), b"\xff\xfe\n").unwrap();
        fs::write(path("long"), vec![b'x'; 10 << 20]).unwrap();
        fs::write(path("lines"), "a\n".repeat(60)).unwrap();
        let pipe = rustix::fs::CWD;
        rustix::fs::mknodat(pipe, path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        for root in roots(folder.path()) {
            for (name, expected) in [
                ("/folder", Unknown::NotAFile),
                ("/pipe", Unknown::NotAFile),
                ("/bytes", Unknown::NotText),
                ("/long", Unknown::TooLong),
                ("/none", Unknown::Missing),
                ("/long/x", Unknown::Missing),
            ] {
                assert_eq!(root.text(name, 4 << 20), Err(expected), "{name}");
            }
            assert_eq!(root.lines("/long", u64::MAX, |_| {}), Err(Unknown::TooLong));
            assert_eq!(root.lines("/lines", 100, |_| {}), Err(Unknown::TooLong));
            let mut seen = 0;
            assert_eq!((root.lines("/lines", 200, |_| seen += 1), seen), (Ok(()), 60));
        }
    }
}
