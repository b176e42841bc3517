//! Known exits of this computer's KVM, counted by vmtax, by KVM itself and by perf.
//!
//! The small VMM of the lab runs the same payloads several times: alone, beside the recorder, beside the recorder that also keeps single events,
//! under `perf stat` and under `perf kvm stat`.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use vmtax_analyse::ledger::{Filter, Ledger};
use vmtax_analyse::samples::median;
use vmtax_analyse::selftest::{Costs, Counter, Exits, KnownLoop, Tested};
use vmtax_cli::exit::{Code, fail};
use vmtax_events::Isa;
use vmtax_events::setting::{Kvm, KvmServer};
use vmtax_guest::order::{Order, OrderOutcome, Report, decode, encode};
use vmtax_lab::{Known, KnownBy, guest_program, known};
use vmtax_live::{HostCounters, LiveOptions, LoopCount, Raw, count_known_loop};

use crate::record::{RecordPlan, Which, record_process};
use crate::{ReadOptions, ledger};

/// A defect that is put in, which the test must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The guest takes more exits than are known.
    Miscounted,
    /// The recorder has room for few kinds of exits.
    Lost,
}

/// Interval of the recordings: longer than any takes.
const INTERVAL: Duration = Duration::from_secs(600);
/// Kinds of exits that the recorder has room for with [`Fault::Lost`].
const FEW_KEYS: u32 = 16;
/// The counter that perf reads.
const PERF_EVENT: &str = "kvm:kvm_exit";

/// Its tables that are read: exits by reason, and accesses.
const PERF_TABLES: [&str; 3] = ["vmexit", "ioport", "mmio"];

/// Runs it. Recordings are left in `folder`: `counts`, and `events` with single events.
///
/// # Errors
/// When this computer's KVM cannot run VMs of this program.
pub fn run(folder: &Path, fault: Option<Fault>) -> anyhow::Result<Tested> {
    let root = Path::new("/");
    let kvm = vmtax_host::kvm(root).map_err(|e| vmtax_cli::output::cannot_read("/", &e))?;
    let isa = isa(&kvm)?;
    let test = Test::new(isa, fault)?;
    let (alone, _) = test.pass(test.command(), |child| go(child, &test.order()))?;
    let (mut host, no_pmu) = HostCounters::open(root);
    let counted = test.recorded(folder.join("counts"), test.limits(None));
    let instructions = host.read().into_iter().find(|(name, _)| *name == "instructions");
    let events = test.recorded(folder.join("events"), test.limits(Some(Raw::default())));
    let (counted, events) = (counted?, events?);
    let perf = test.perf();
    let reasons = test.perf_reasons(folder, perf.is_ok());
    Ok(Tested {
        exits: test.exits(&counted, &events, reasons.as_deref().unwrap_or_default()),
        no_reasons: reasons.err(),
        loops: count_known_loop().into_iter().map(known_loop).collect(),
        costs: test.costs(&alone, &counted.report, &events.report),
        perf,
        instructions: match instructions {
            Some((_, value)) => Ok(value as u64),
            None => Err(no_pmu.unwrap_or_else(|| "it counted nothing".to_owned())),
        },
        least_instructions: test.known.iter().map(Known::exits).sum(),
        losses: {
            let mut losses = counted.ledger.losses.clone();
            losses.merge(&events.ledger.losses);
            losses
        },
        recording: counted.ledger.recording,
    })
}

fn known_loop(one: LoopCount) -> KnownLoop {
    let counted = one.counted.map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "all counters are in use".to_owned(),
        _ => error.to_string(),
    });
    KnownLoop { event: one.event, known: one.known, counted }
}

/// The vendor of this computer's KVM.
fn isa(kvm: &Kvm) -> anyhow::Result<Isa> {
    match (kvm.server(), vmtax_report::kvm::not_recordable(kvm)) {
        (KvmServer::Hardware(isa, _), None) => Ok(isa),
        (KvmServer::Hardware(..), Some(why)) => {
            fail(Code::Input, format!("selftest checks `vmtax record`, and {why}"))
        }
        (_, why) => fail(Code::Input, why.unwrap_or_default()),
    }
}

struct Test {
    program: File,
    known: Vec<Known>,
    fault: Option<Fault>,
}

/// A run of all payloads, recorded.
struct Recorded {
    report: Report,
    ledger: Ledger,
}

impl Test {
    fn new(isa: Isa, fault: Option<Fault>) -> anyhow::Result<Test> {
        if guest_program().is_empty() {
            return fail(Code::Input, vmtax_lab::Error::NotBuilt.to_string());
        }
        let mut program = File::from(memfd_create("vmtax-guest", MemfdFlags::CLOEXEC)?);
        program.write_all(guest_program())?;
        // The kernel does not execute a file that is open for writing.
        let program = File::open(format!("/proc/self/fd/{}", program.as_raw_fd()))?;
        Ok(Test { program, known: known(isa)?, fault })
    }

    fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.program.as_raw_fd()).into()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.path());
        command.arg("operations");
        command
    }

    fn order(&self) -> Order {
        let mut operations: Vec<_> = self.known.iter().map(|one| one.operation.clone()).collect();
        if let (Some(Fault::Miscounted), Some(first)) = (self.fault, operations.first_mut()) {
            first.count += 1;
        }
        Order { operations, ..Order::default() }
    }

    fn limits(&self, raw: Option<Raw>) -> LiveOptions {
        let usual = LiveOptions::default();
        let is_few = self.fault == Some(Fault::Lost) && raw.is_none();
        LiveOptions { raw, most_keys: if is_few { FEW_KEYS } else { usual.most_keys }, ..usual }
    }

    /// One run of the payloads: what they report, and the program's messages. `run` lets the program go on and returns when it may be waited for.
    fn pass(
        &self,
        mut command: Command,
        run: impl FnOnce(&mut Child) -> anyhow::Result<()>,
    ) -> anyhow::Result<(Report, String)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        if let Err(error) = run(&mut child) {
            // It may have ended by itself.
            let _ = child.kill();
            child.wait()?;
            return Err(error);
        }
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let Some(report) = decode::<Report>(&output.stdout).filter(|_| output.status.success())
        else {
            return fail(
                Code::Machine,
                format!("the small VMM failed ({}): {said}", output.status),
            );
        };
        let failed = |outcome: &OrderOutcome| outcome.failure.clone();
        if let Err(problem) = report.check(self.known.iter().map(|one| one.operation.number)) {
            return fail(Code::Machine, format!("the small VMM failed: {problem}"));
        }
        match report.outcomes.iter().find_map(failed) {
            Some(problem) => fail(Code::Machine, format!("a VM of known exits failed: {problem}")),
            None => Ok((report, said)),
        }
    }

    fn recorded(&self, output: PathBuf, limits: LiveOptions) -> anyhow::Result<Recorded> {
        let plan = RecordPlan {
            which: Which::default(),
            duration: None,
            interval: INTERVAL,
            pmu: false,
            limits,
            labels: Vec::new(),
            output: output.clone(),
            command: Vec::new(),
        };
        let order = self.order();
        let run =
            |child: &mut Child| record_process(&plan, child, |child: &mut Child| go(child, &order));
        let (report, _) = self.pass(self.command(), run)?;
        Ok(Recorded { report, ledger: of_file(&output)? })
    }

    /// All counts of one run beside each other.
    fn exits(&self, counted: &Recorded, events: &Recorded, perf: &[Option<u64>]) -> Vec<Exits> {
        let perf = perf.iter().copied().chain(std::iter::repeat(None));
        let mut rows: Vec<Exits> = (self.known.iter().zip(&counted.report.outcomes).zip(perf))
            .map(|((one, outcome), perf)| Exits {
                what: one.summary.to_owned(),
                known: Some(one.exits()),
                counts: vec![
                    (Counter::Recorder, of_ledger(&counted.ledger, one)),
                    (Counter::Events, of_ledger(&events.ledger, one)),
                    (Counter::Kvm, statistic(outcome, one)),
                    (Counter::Perf, perf),
                ],
            })
            .collect();
        for (what, of) in [("all exits", counted), ("all exits, with single events", events)] {
            // The last exit of each VM has no entry after it.
            let all = of.ledger.total().count + of.ledger.losses.unpaired_exits;
            let counts =
                vec![(Counter::Recorder, Some(all)), (Counter::Kvm, all_of_kvm(&of.report))];
            rows.push(Exits { what: what.to_owned(), known: None, counts });
        }
        rows
    }

    /// What perf counts, beside KVM.
    fn perf(&self) -> Result<Exits, String> {
        let mut command = Command::new("perf");
        command.args(["stat", "-x", ",", "-e", PERF_EVENT, "--"]).arg(self.path());
        command.arg("operations").env("LC_ALL", "C");
        let found = self.pass(command, |child| go(child, &self.order()));
        let (report, said) = found.map_err(|error| {
            let missing = error.downcast_ref::<std::io::Error>();
            match missing.map(std::io::Error::kind) {
                Some(std::io::ErrorKind::NotFound) => "perf is not installed".to_owned(),
                _ => format!("perf: {error:#}"),
            }
        })?;
        // The line is `10072,,kvm:kvm_exit,...`.
        let line = said.lines().find(|line| line.contains(PERF_EVENT)).unwrap_or(&said);
        let counted = line.split(',').next().and_then(|number| number.parse().ok());
        let counted: u64 = counted.ok_or_else(|| format!("perf counts no exits: {line}"))?;
        let counts = vec![(Counter::Perf, Some(counted)), (Counter::Kvm, all_of_kvm(&report))];
        Ok(Exits { what: "all exits, under perf".to_owned(), known: None, counts })
    }

    /// What `perf kvm stat` counts of each operation.
    fn perf_reasons(&self, folder: &Path, has_perf: bool) -> Result<Vec<Option<u64>>, String> {
        if !has_perf {
            return Err("perf does not count here".to_owned());
        }
        let said = |error: anyhow::Error| format!("{error:#}");
        let recording = folder.join("perf.data");
        let mut command = Command::new("perf");
        command.args(["kvm", "stat", "record", "-o"]).arg(&recording).arg("--").arg(self.path());
        command.arg("operations").env("LC_ALL", "C");
        self.pass(command, |child| go(child, &self.order())).map_err(said)?;
        let lost = of_file(&recording).map_err(said)?.losses;
        if lost.recorder_lost > 0 {
            return Err(format!("perf lost {} events", lost.recorder_lost));
        }
        let mut tables = Vec::new();
        for event in PERF_TABLES {
            let mut report = Command::new("perf");
            report.args(["kvm", "-i"]).arg(&recording);
            report.args(["stat", "report", "--event", event]).env("LC_ALL", "C");
            let output = report.stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
            // The table of perf 6.1 is on standard error.
            tables.extend(output.stdout.into_iter().chain(output.stderr));
        }
        let text = folder.join("perf.txt");
        fs::write(&text, tables).map_err(|error| error.to_string())?;
        let ledger = of_file(&text).map_err(said)?;
        Ok(self.known.iter().map(|one| of_ledger(&ledger, one)).collect())
    }

    /// Cycles of each operation alone and recorded.
    fn costs(&self, alone: &Report, counted: &Report, events: &Report) -> Vec<Costs> {
        let each = |report: &Report, at: usize| {
            let outcome = report.outcomes.get(at)?;
            let count = f64::from(self.known.get(at)?.operation.count);
            // The first batch only warms up.
            let cycles: Vec<f64> = outcome.cycles.iter().skip(1).map(|one| *one as f64).collect();
            Some(median(&cycles)? / count)
        };
        let khz = alone.outcomes.iter().find_map(|one| one.statistics.as_ref());
        let khz = khz.map_or(0, |statistics| statistics.tsc_khz);
        let ns = |cycles: f64| (khz > 0).then(|| cycles * 1e6 / f64::from(khz));
        let costs = |(at, one): (usize, &Known)| {
            let [alone, counted, events] = [alone, counted, events].map(|of| each(of, at));
            Some(Costs {
                what: one.summary.to_owned(),
                alone_ns: ns(alone?)?,
                counted_ns: ns(counted?)?,
                events_ns: ns(events?)?,
            })
        };
        self.known.iter().enumerate().filter_map(costs).collect()
    }
}

fn of_file(path: &Path) -> anyhow::Result<Ledger> {
    ledger::of_path(path, &ReadOptions::default(), Filter::default())
}

/// Gives the program its order, and nothing more.
fn go(child: &mut Child, order: &Order) -> anyhow::Result<()> {
    let mut input = child.stdin.take();
    match &mut input {
        Some(input) => Ok(input.write_all(&encode(order))?),
        None => Ok(()),
    }
}

/// Exits of an operation in a recording.
fn of_ledger(ledger: &Ledger, one: &Known) -> Option<u64> {
    Some(match one.by {
        KnownBy::Reason(reason) => {
            let same = ledger.exits.iter().filter(|(key, _)| key.reason.name() == reason);
            same.map(|(_, tally)| tally.count).sum()
        }
        KnownBy::Access(detail) => {
            let same = ledger.accesses.iter().filter(|(key, _)| key.detail == detail);
            same.map(|(_, tally)| tally.count).sum()
        }
    })
}

/// What KVM's own statistic says of an operation.
fn statistic(outcome: &OrderOutcome, one: &Known) -> Option<u64> {
    let (name, others) = one.statistic?;
    let counters = &outcome.statistics.as_ref()?.counters;
    let value = counters.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value);
    value.checked_sub(others)
}

/// All exits by KVM's own statistics.
fn all_of_kvm(report: &Report) -> Option<u64> {
    let exits = |outcome: &OrderOutcome| {
        let counters = &outcome.statistics.as_ref()?.counters;
        counters.iter().find(|(name, _)| name == "exits").map(|(_, value)| *value)
    };
    report.outcomes.iter().map(exits).sum()
}
