//! `vmtax selftest`: known exits of this computer's KVM, counted in every way there is.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, ValueHint};
use vmtax_analyse::host_pages::PagesVerdict;
use vmtax_analyse::selftest::Outcome;
use vmtax_cli::exit::{Code, CodedError as Failed};
use vmtax_cli::output;
use vmtax_durable::{FileAccess, NewFile};
use vmtax_pageops::accel::AccelChoice;
use vmtax_pageops::device::idxd::Roots;
use vmtax_pageops::engine::{Dispatcher, EngineConfig, PageEngine};
use vmtax_pageops::{Cpu, PAGE, PageFacts};
use vmtax_report::selftest::Tried;
use vmtax_report::tables::AllFormats;
use vmtax_report::text::TextLayout;
use vmtax_runs::host_pages;
use vmtax_runs::selftest::{self, Fault};

use crate::flags::OutputArgs;

/// Check vmtax on this computer's KVM, as root.
///
/// A small VMM of vmtax runs guests that take known numbers of exits. `vmtax record`, KVM's own statistics and perf (where it is installed)
/// count them, and all must agree. Also shown: what recording costs an exit, and whether the host's counters, DSA and large pages can be used.
/// No other VM is looked at, and nothing is changed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sudo vmtax selftest
  sudo vmtax selftest --bundle report.tar.zst    a file for a report, without the name of this computer

Exit code 6 if anything differs.")]
pub(crate) struct SelftestArgs {
    /// Also write a small archive for a report: the table, kernel, processor, and the recorded known exits.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    bundle: Option<PathBuf>,

    /// Put a defect in, which must be found; for tests.
    #[arg(long, value_enum, value_name = "DEFECT", hide = true)]
    fault: Option<FaultWord>,

    #[command(flatten)]
    to: OutputArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FaultWord {
    Miscounted,
    Lost,
}

impl FaultWord {
    fn fault(self) -> Fault {
        match self {
            FaultWord::Miscounted => Fault::Miscounted,
            FaultWord::Lost => Fault::Lost,
        }
    }
}

pub(crate) fn run(args: &SelftestArgs) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new().prefix("vmtax-selftest-").tempdir()?;
    let tested = selftest::run(folder.path(), args.fault.map(FaultWord::fault))?;
    let others = vec![device(), pages()];
    let differs = tested.differs() || others.iter().any(|(_, one, _)| *one == Outcome::Differs);
    let tables = vmtax_report::selftest::tables(env!("CARGO_PKG_VERSION"), &tested, others)?;
    args.to.write(&tables)?;
    if let Some(file) = &args.bundle {
        bundle(file, folder.path(), &tables)?;
    }
    match differs {
        true => Err(Failed::new(Code::Breach, "selftest found a difference").into()),
        false => Ok(()),
    }
}

/// DSA queues against the processor on the same pages.
fn device() -> Tried {
    const NAME: &str = "DSA";
    let devices = match AccelChoice::Auto.open(&Roots::default()) {
        Ok(devices) => devices,
        Err(problem) => return (NAME, Outcome::NotHere, problem.to_string()),
    };
    if devices.portals.is_empty() {
        let unusable: Vec<String> = devices.unusable.iter().map(ToString::to_string).collect();
        let why =
            if unusable.is_empty() { "no work queue".to_owned() } else { unusable.join("; ") };
        return (NAME, Outcome::NotHere, why);
    }
    let queues = devices.portals.len();
    let config = EngineConfig { policy: devices.policy, ..EngineConfig::default() };
    let mut engine = PageEngine::new(Dispatcher::new(config, devices.portals));
    // Pages of zeros and others.
    let memory: Vec<u8> = (0..PAGE * 64).map(|i| ((i / PAGE % 3) * (i % 251)) as u8).collect();
    let scan = |with: &mut dyn vmtax_pageops::checkpoint::Accelerate| {
        let mut facts = vec![PageFacts::default(); memory.len() / PAGE];
        with.scan(&memory, &mut facts);
        facts
    };
    let same = scan(&mut engine) == scan(&mut Cpu::best());
    let outcome = if same { Outcome::Works } else { Outcome::Differs };
    (
        NAME,
        outcome,
        format!(
            "{queues} work queues, 64 pages as by the processor: {}",
            engine.stats().describe()
        ),
    )
}

/// In what pages this system is mapped, if it is a VM itself.
fn pages() -> Tried {
    let (_, judged) = host_pages::of_this_system();
    let outcome = match judged.verdict {
        PagesVerdict::Small | PagesVerdict::Large | PagesVerdict::Mixed => Outcome::Works,
        PagesVerdict::NotMeasured | PagesVerdict::NoVm | PagesVerdict::Undecided => {
            Outcome::NotHere
        }
    };
    ("pages of this system's host", outcome, judged.verdict.name().to_owned())
}

/// Writes the archive: it appears whole.
fn bundle(file: &Path, folder: &Path, tables: &impl AllFormats) -> anyhow::Result<()> {
    let name = file.display().to_string();
    let failed = |e: &std::io::Error| anyhow::Error::from(output::cannot_write(&name, e));
    let out = NewFile::create(file, FileAccess::Private).map_err(|e| failed(&e))?;
    let write = || -> std::io::Result<()> {
        let mut archive = tar::Builder::new(zstd::Encoder::new(out.file(), 0)?);
        let mut add = |name: &str, text: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o600);
            header.set_cksum();
            archive.append_data(&mut header, name, text)
        };
        let (mut json, mut text) = (Vec::new(), Vec::new());
        tables.json(&mut json)?;
        tables.text(TextLayout::default(), &mut text)?;
        add("selftest/selftest.json", &json)?;
        add("selftest/selftest.txt", &text)?;
        archive.mode(tar::HeaderMode::Deterministic);
        archive.append_dir_all("selftest/counts", folder.join("counts"))?;
        archive.append_dir_all("selftest/events", folder.join("events"))?;
        archive.into_inner()?.finish()?;
        Ok(())
    };
    write().map_err(|e| failed(&e))?;
    out.publish().map_err(|e| failed(&e))
}
