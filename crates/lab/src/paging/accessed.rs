//! What a batch accessed, as samples of a run.

use std::collections::BTreeMap;

use iced_x86::{FastFormatter, FlowControl};
use vmtax_events::{Better, Sample, Simulated};

use super::program::RecordedCode;

/// An instruction of a program is kept if it has more than one walk of so many.
const KEPT: u64 = 100;

/// The simulation of an operation's batch, or why there is none.
pub(crate) type Outcome = Result<Paging, String>;

/// What a batch accessed, and what it costs simulated processors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paging {
    pub accesses: u64,
    /// Executions of instructions of its code, by address.
    pub executed: BTreeMap<u64, u64>,
    /// Branches among them, taken or not.
    pub branches: u64,
    /// Different pages of 4 KiB among them, by the sizes of the pages that map them: `4K on 2M` is a guest's page of 4 KiB on a host's of 2 MiB.
    pub pages: BTreeMap<String, u64>,
    /// By the name of the processor.
    pub simulated: Vec<(&'static str, Simulated)>,
    /// The same by instruction, in the order of their addresses.
    pub instructions: Vec<InstructionPaging>,
    /// What the guest's kernel accessed meanwhile, if it has one.
    pub kernel: Option<Box<Paging>>,
    /// The address of the first instruction of a process.
    pub(crate) start: Option<u64>,
}

/// What an instruction accessed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InstructionPaging {
    pub address: u64,
    /// Where it is in its code: in that of a payload, or in the file of a program.
    pub place: u64,
    /// Its function, if it has a name, and it in Intel's syntax; empty where the code is not known.
    pub text: String,
    /// Loads and stores.
    pub accesses: u64,
    /// By the name of the processor.
    pub simulated: Vec<(&'static str, Simulated)>,
}

impl Paging {
    /// Metric, unit and value of each number.
    pub(crate) fn figures(&self) -> Vec<(String, &'static str, u64, Better)> {
        let accesses =
            (Sample::PAGING_ACCESSES.to_owned(), "count", self.accesses, Better::Neither);
        let pages = self.pages.iter().map(|(sizes, pages)| {
            (format!("{}{sizes}", Sample::PAGING_PAGES), "count", *pages, Better::Neither)
        });
        let simulated = self.simulated.iter().flat_map(|(processor, counts)| {
            let named = move |(metric, unit, value)| {
                (format!("{metric} {processor}"), unit, value, Better::Lower)
            };
            counts.known_figures().map(named)
        });
        let executed = [self.executed.values().sum(), self.branches];
        let executed = Sample::PAGING_EXECUTED.into_iter().zip(executed);
        let executed = executed.map(|(metric, n)| (metric.to_owned(), "count", n, Better::Lower));
        let instructions = self.instructions.iter().flat_map(InstructionPaging::figures);
        // Branches of the kernel are not known.
        let kernel = self.kernel.iter().flat_map(|kernel| kernel.figures());
        let kernel = kernel.filter(|(metric, ..)| metric != Sample::PAGING_EXECUTED[1]);
        let kernel = kernel.map(|(metric, unit, value, better)| {
            (format!("{}{metric}", Sample::PAGING_KERNEL), unit, value, better)
        });
        std::iter::once(accesses)
            .chain(executed)
            .chain(pages)
            .chain(simulated)
            .chain(instructions)
            .chain(kernel)
            .collect()
    }

    /// With the texts of instructions and the number of branches: the code is this. Of a program, only what walks is kept.
    pub(crate) fn with_texts(mut self, code: RecordedCode<'_>) -> Paging {
        let is_branch = |address: &u64| {
            code.instruction(*address).is_some_and(|it| it.flow_control() != FlowControl::Next)
        };
        self.executed.retain(|address, _| code.has(*address));
        let branches = self.executed.iter().filter(|(address, _)| is_branch(address));
        self.branches = branches.map(|(_, times)| times).sum();
        if let RecordedCode::Program(..) = code {
            let walks = |all: &[(&str, Simulated)]| all.iter().map(|(_, one)| one.walks).collect();
            let all: Vec<u64> = walks(&self.simulated);
            self.instructions.retain(|one| {
                let of: Vec<u64> = walks(&one.simulated);
                of.iter().zip(&all).any(|(one, all)| *one > all / KEPT)
            });
        }
        for one in &mut self.instructions {
            one.place = code.place(one.address);
            if let Some(instruction) = code.instruction(one.address) {
                one.text = code.function(one.address).unwrap_or_default();
                FastFormatter::new().format(&instruction, &mut one.text);
            }
        }
        self
    }
}

impl InstructionPaging {
    /// Metric, unit and value of each number that is not 0.
    fn figures(&self) -> Vec<(String, &'static str, u64, Better)> {
        let place = self.place;
        let named =
            |metric: &str| format!("{}+{place:#x} {}; {metric}", Sample::PAGING_AT, self.text);
        let mut all =
            vec![(named(Sample::PAGING_ACCESSES), "count", self.accesses, Better::Neither)];
        for (processor, counts) in &self.simulated {
            all.extend(counts.known_figures().filter(|(.., n)| *n > 0).map(|(metric, unit, n)| {
                (named(&format!("{metric} {processor}")), unit, n, Better::Lower)
            }));
        }
        all
    }
}
