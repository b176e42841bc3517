//! Profiles and counters of a run, from files that other programs wrote.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use vmtax_capture::ImportSource;
use vmtax_capture::import::HEAD;
use vmtax_capture::posted;
use vmtax_capture::profile::{self, SymbolNames as Names};
use vmtax_capture::source::{RandomFile, ReadAt};
use vmtax_cli::exit::{Code, CodedError};
use vmtax_cli::output::cannot_read;
use vmtax_cli::progress::ReadingProgress;
use vmtax_events::{Losses, Profile, ProfileOrigin, Stat};
use vmtax_host::symbols::Symbols;

use crate::input::{PerfFolder, restored};

/// The files that the user names.
#[derive(Clone, Debug, Default)]
pub struct ProfileFiles {
    /// Profiles of the host.
    pub host: Vec<PathBuf>,
    /// Profiles taken in the guest.
    pub guest: Vec<PathBuf>,
    /// The guest's hottest function by instruction.
    pub instructions: Option<PathBuf>,
    pub stats: Vec<PathBuf>,
    /// Root folder of the programs of a perf.data profile and of its kernel's /proc/kallsyms.
    pub symbols: Option<PathBuf>,
}

/// The content of the files.
#[derive(Default, Debug)]
pub struct Profiles {
    pub profiles: Vec<Profile>,
    pub stats: Vec<Stat>,
    pub losses: Losses,
}

impl ProfileFiles {
    /// Reads all files.
    pub fn read(&self) -> anyhow::Result<Profiles> {
        let mut profiles = Profiles::default();
        let mut symbols = self.open_symbols()?;
        let files = |place, files: &[PathBuf]| {
            files.iter().map(move |file| (place, file.clone())).collect::<Vec<_>>()
        };
        let all = [
            files(ProfileOrigin::Host, &self.host),
            files(ProfileOrigin::Guest, &self.guest),
            files(ProfileOrigin::Instructions, self.instructions.as_slice()),
        ];
        for (place, path) in all.concat() {
            let imported = read_profile(&path, place, &mut symbols)?;
            profiles.profiles.push(imported.profile);
            profiles.losses.merge(&imported.losses);
        }
        for path in &self.stats {
            let name = path.display().to_string();
            let mut file = File::open(path).map_err(|e| cannot_read(&name, &e))?;
            let mut head = Vec::new();
            let first = (&mut file).take(HEAD as u64).read_to_end(&mut head);
            first.map_err(|e| cannot_read(&name, &e))?;
            let is_posted = posted::is_posted(&head);
            let mut whole = io::Cursor::new(head).chain(file);
            let read = if is_posted {
                vmtax_capture::stats::read(&mut restored(whole, &name)?.as_bytes())
            } else {
                vmtax_capture::stats::read(&mut whole)
            };
            let (stats, losses) = read.map_err(fault(&name))?;
            profiles.stats.extend(stats);
            profiles.losses.merge(&losses);
        }
        Ok(profiles)
    }

    fn open_symbols(&self) -> anyhow::Result<ByRoot> {
        let root = self.symbols.as_deref().unwrap_or(Path::new("/"));
        let symbols =
            Symbols::new(root).map_err(|e| cannot_read(&root.display().to_string(), &e))?;
        Ok(ByRoot(symbols))
    }
}

/// The symbol tables below a root, as the importer asks for them.
struct ByRoot(Symbols);

impl Names for ByRoot {
    fn kernel(&mut self, address: u64, text: Option<u64>) -> Option<String> {
        self.0.kernel(address, text)
    }

    fn file(&mut self, path: &str, offset: u64) -> Option<String> {
        self.0.file(path, offset)
    }
}

fn read_profile(
    path: &Path,
    place: ProfileOrigin,
    symbols: &mut ByRoot,
) -> anyhow::Result<profile::ImportedProfile> {
    let name = path.display().to_string();
    let unreadable = |e: io::Error| cannot_read(&name, &e);
    if path.is_dir()
        && let Some(folder) = PerfFolder::open(path)?
    {
        let format = profile::ProfileFormat::PerfFile;
        return folder
            .read(&ReadingProgress::default(), |source| {
                profile::import(format, place, source, symbols)
            })
            .map_err(fault(&name));
    }
    let mut file = File::open(path).map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        let mut head = Vec::new();
        (&mut file).take(HEAD as u64).read_to_end(&mut head).map_err(unreadable)?;
        if posted::is_posted(&head) {
            return read_posted(io::Cursor::new(head).chain(file), &name, place, symbols);
        }
        let format = profile::ProfileFormat::recognise(&head).map_err(fault(&name))?;
        if format.needs_seeking() {
            let text =
                format!("{name}: a perf.data file cannot be read from a pipe; store it first");
            return Err(CodedError::new(Code::Usage, text).into());
        }
        let mut whole = io::Cursor::new(head).chain(file);
        return profile::import(format, place, ImportSource::Stream(&mut whole), symbols)
            .map_err(fault(&name));
    }
    let file = RandomFile::new(file).map_err(unreadable)?;
    let mut head = vec![0; HEAD];
    let got = file.read_at(0, &mut head).map_err(unreadable)?;
    if posted::is_posted(&head[..got]) {
        return read_posted(file.try_clone().map_err(unreadable)?, &name, place, symbols);
    }
    let format = profile::ProfileFormat::recognise(&head[..got]).map_err(fault(&name))?;
    profile::import(format, place, ImportSource::Random(&file), symbols).map_err(fault(&name))
}

/// The text of a profile from a mail or a web page.
fn read_posted(
    stream: impl Read,
    name: &str,
    place: ProfileOrigin,
    symbols: &mut ByRoot,
) -> anyhow::Result<profile::ImportedProfile> {
    let text = restored(stream, name)?;
    let mut bytes = text.as_bytes();
    let head = bytes.get(..HEAD).unwrap_or(bytes);
    let format = profile::ProfileFormat::recognise(head).map_err(fault(name))?;
    profile::import(format, place, ImportSource::Stream(&mut bytes), symbols).map_err(fault(name))
}

pub(crate) fn fault(name: &str) -> impl FnOnce(vmtax_capture::Error) -> anyhow::Error {
    move |error| {
        let is_io = matches!(error, vmtax_capture::Error::Io { .. });
        let code = if is_io { Code::Input } else { Code::Data };
        CodedError::new(code, format!("{name}: {error}")).into()
    }
}
