//! What a batch accessed, as samples of a run.

use std::collections::BTreeMap;

use vmtax_events::{Better, Sample, Simulated};

/// The simulation of an operation's batch, or why there is none.
pub(crate) type Outcome = Result<Paging, String>;

/// What a batch accessed, and what it costs simulated processors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paging {
    /// Loads and stores.
    pub accesses: u64,
    /// Different pages of 4 KiB among them, by the sizes of the pages that map them: `4K on 2M` is a guest's page of 4 KiB on a host's of 2 MiB.
    pub pages: BTreeMap<String, u64>,
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
            let named = |(metric, unit, value)| {
                (format!("{metric} {processor}"), unit, value, Better::Lower)
            };
            counts.figures().map(named)
        });
        std::iter::once(accesses).chain(pages).chain(simulated).collect()
    }
}
