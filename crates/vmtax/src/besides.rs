//! What a run holds beside its recording: profiles and counters, read from the files that the user names.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use vmtax_capture::Source;
use vmtax_capture::import::HEAD;
use vmtax_capture::profile::{self, Symbols as Names};
use vmtax_capture::source::{RandomFile, ReadAt};
use vmtax_events::{Losses, Place, Profile, Stat};
use vmtax_host::symbols::Symbols;

use crate::exit::{Code, Fault};
use crate::input::{PerfFolder, cannot_read};

/// Profiles and counters of the same time as the recording.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct BesidesArgs {
    /// A profile of the host: folded stacks, perf.data with samples, or the text of perf script.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    host_profile: Vec<PathBuf>,

    /// A profile of the guest, taken in the guest.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    guest_profile: Vec<PathBuf>,

    /// The hottest function of the guest by instruction: the text of `perf annotate --stdio`.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    guest_instructions: Option<PathBuf>,

    /// Counters: the output of `perf stat` (also with -x or -j), the JSON of `vmtax pages`, or lines of NAME VALUE as
    /// KVM's statistics. Totals only: no -I, -A or --per-socket.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    stats: Vec<PathBuf>,

    /// Where the programs of a perf.data profile lie, and its kernel's /proc/kallsyms. [default: /]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    symbols: Option<PathBuf>,
}

/// What was read.
#[derive(Default)]
pub(crate) struct Besides {
    pub(crate) profiles: Vec<Profile>,
    pub(crate) stats: Vec<Stat>,
    pub(crate) losses: Losses,
}

impl BesidesArgs {
    /// Reads all of it.
    pub(crate) fn read(&self) -> anyhow::Result<Besides> {
        let mut besides = Besides::default();
        let mut symbols = self.open_symbols()?;
        let files = |place, files: &[PathBuf]| {
            files.iter().map(move |file| (place, file.clone())).collect::<Vec<_>>()
        };
        let all = [
            files(Place::Host, &self.host_profile),
            files(Place::Guest, &self.guest_profile),
            files(Place::Instructions, self.guest_instructions.as_slice()),
        ];
        for (place, path) in all.concat() {
            let imported = read_profile(&path, place, &mut symbols)?;
            besides.profiles.push(imported.profile);
            besides.losses.merge(&imported.losses);
        }
        for path in &self.stats {
            let name = path.display().to_string();
            let mut file = File::open(path).map_err(|e| cannot_read(&name, &e))?;
            let (stats, losses) = vmtax_capture::stats::read(&mut file).map_err(fault(&name))?;
            besides.stats.extend(stats);
            besides.losses.merge(&losses);
        }
        Ok(besides)
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
    place: Place,
    symbols: &mut ByRoot,
) -> anyhow::Result<profile::Imported> {
    let name = path.display().to_string();
    let unreadable = |e: io::Error| cannot_read(&name, &e);
    if path.is_dir()
        && let Some(folder) = PerfFolder::open(path)?
    {
        let format = profile::Format::PerfFile;
        return folder
            .read(|source| profile::import(format, place, source, symbols))
            .map_err(fault(&name));
    }
    let mut file = File::open(path).map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        let mut head = Vec::new();
        (&mut file).take(HEAD as u64).read_to_end(&mut head).map_err(unreadable)?;
        let format = profile::Format::recognise(&head).map_err(fault(&name))?;
        if format.needs_seeking() {
            let text =
                format!("{name}: a perf.data file cannot be read from a pipe; store it first");
            return Err(Fault::new(Code::Usage, text).into());
        }
        let mut whole = io::Cursor::new(head).chain(file);
        return profile::import(format, place, Source::Stream(&mut whole), symbols)
            .map_err(fault(&name));
    }
    let file = RandomFile::new(file).map_err(unreadable)?;
    let mut head = vec![0; HEAD];
    let got = file.read_at(0, &mut head).map_err(unreadable)?;
    let format = profile::Format::recognise(&head[..got]).map_err(fault(&name))?;
    profile::import(format, place, Source::Random(&file), symbols).map_err(fault(&name))
}

fn fault(name: &str) -> impl FnOnce(vmtax_capture::Error) -> anyhow::Error {
    move |error| {
        let is_io = matches!(error, vmtax_capture::Error::Io { .. });
        let code = if is_io { Code::Input } else { Code::Data };
        Fault::new(code, format!("{name}: {error}")).into()
    }
}
