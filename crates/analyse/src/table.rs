//! Tables over a ledger: rows and key columns.

use std::collections::BTreeMap;

use vmtax_events::{
    AccessKey, Cause, Detail, DetailKind, ExitKey, Isa, Level, Outcome, Reason, Tally, words,
};

use crate::Ledger;
pub use crate::cause::{cause_of, missing_of};

words! {
    /// The tables that `--event` names. (`nested` is [`crate::Nested`].)
    pub enum TableKind {
        Vmexit = "vmexit",
        Msr = "msr",
        Ioport = "ioport",
        /// Device register accesses.
        Mmio = "mmio",
        Cpuid = "cpuid",
        Hypercall = "hypercall",
        /// Conversions between private and shared memory, and pages that were pre-faulted.
        Conversion = "conversion",
        Cause = "cause",
    }
}

impl TableKind {
    /// Whether its rows are exits (else accesses).
    pub fn is_exits(self) -> bool {
        matches!(self, TableKind::Vmexit | TableKind::Cause)
    }

    /// Its default key columns.
    pub fn default_by(self) -> &'static [By] {
        match self {
            TableKind::Vmexit => &[By::Reason, By::Level],
            TableKind::Cause => &[By::Cause],
            _ => &[By::Detail],
        }
    }

    /// Whether `by` says something about this table.
    pub fn allows(self, by: By) -> bool {
        self.is_exits() || matches!(by, By::Vm | By::Vcpu | By::Level | By::Detail)
    }

    fn holds(self, detail: Detail) -> bool {
        use DetailKind as K;
        let kind = detail.kind;
        match self {
            TableKind::Vmexit | TableKind::Cause => false,
            TableKind::Msr => {
                matches!(kind, K::MsrRead | K::MsrWrite | K::SysregRead | K::SysregWrite)
            }
            TableKind::Ioport => matches!(kind, K::PortIn | K::PortOut),
            TableKind::Mmio => matches!(kind, K::MmioRead | K::MmioWrite),
            TableKind::Cpuid => matches!(kind, K::Cpuid),
            TableKind::Hypercall => {
                matches!(kind, K::Hypercall | K::HypervHypercall | K::XenHypercall | K::Smccc)
            }
            TableKind::Conversion => {
                matches!(kind, K::MemoryFault | K::ToPrivate | K::ToShared | K::PreFault)
                    || detail.is_conversion()
            }
        }
    }
}

words! {
    /// The key columns of rows (`--by`).
    pub enum By {
        Reason = "reason",
        /// L1 or L2.
        Level = "level",
        /// What the guest was doing.
        Cause = "cause",
        /// What it was about: MSR, port, address, ...
        Detail = "detail",
        Outcome = "outcome",
        Vm = "vm",
        /// vCPU (always with its VM).
        Vcpu = "vcpu",
    }
}

/// One cell of a row's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyValue {
    /// See [`By::Reason`].
    Reason(Reason),
    /// See [`By::Level`].
    Level(Level),
    /// See [`By::Cause`].
    Cause(Cause),
    /// See [`By::Detail`].
    Detail(Detail),
    /// See [`By::Outcome`].
    Outcome(Outcome),
    /// [`vmtax_events::Vm::id`].
    Vm(u32),
    /// VM and vCPU id (or [`vmtax_events::NO_VCPU`]).
    Vcpu(u32, u32),
}

/// A row: what it counts, and the counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedRow {
    /// One value per [`SortedTable::by`].
    pub key: Vec<KeyValue>,
    pub tally: Tally,
}

/// A table: rows with most time first (then most counts, then by key).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedTable {
    pub kind: TableKind,
    pub isa: Isa,
    /// The key columns of its rows.
    pub by: Vec<By>,
    pub rows: Vec<SortedRow>,
    /// All rows added up.
    pub total: Tally,
}

impl SortedTable {
    /// Groups a ledger. `by` words that do not apply to `kind` ([`TableKind::allows`]) are left out;
    /// when none is left the kind's own default is used.
    pub fn new(ledger: &Ledger, kind: TableKind, by: &[By]) -> SortedTable {
        let mut wanted: Vec<By> = Vec::new();
        for &b in by {
            if kind.allows(b) && !wanted.contains(&b) {
                wanted.push(b);
            }
        }
        if wanted.is_empty() {
            wanted = kind.default_by().to_vec();
        }
        let mut groups: BTreeMap<Vec<KeyValue>, Tally> = BTreeMap::new();
        if kind.is_exits() {
            for (key, tally) in &ledger.exits {
                let cells = wanted
                    .iter()
                    .map(|by| match by {
                        By::Reason => KeyValue::Reason(key.reason),
                        By::Level => KeyValue::Level(key.level),
                        By::Cause => KeyValue::Cause(cause_of(key)),
                        By::Detail => KeyValue::Detail(key.detail),
                        By::Outcome => KeyValue::Outcome(key.outcome),
                        By::Vm => KeyValue::Vm(key.vm),
                        By::Vcpu => KeyValue::Vcpu(key.vm, key.vcpu),
                    })
                    .collect();
                groups.entry(cells).or_default().merge(tally);
            }
        } else {
            let accesses = ledger.accesses.iter().map(|(key, tally)| (*key, tally));
            for (key, tally) in accesses.chain(requests(ledger)) {
                if !kind.holds(key.detail) {
                    continue;
                }
                let cells = wanted
                    .iter()
                    .map(|by| match by {
                        By::Vm => KeyValue::Vm(key.vm),
                        By::Vcpu => KeyValue::Vcpu(key.vm, key.vcpu),
                        By::Level => KeyValue::Level(key.level),
                        // `allows` lets nothing else through.
                        _ => KeyValue::Detail(key.detail),
                    })
                    .collect();
                groups.entry(cells).or_default().merge(tally);
            }
        }
        let mut total = Tally::default();
        let mut rows: Vec<SortedRow> = groups
            .into_iter()
            .map(|(key, tally)| {
                total.merge(&tally);
                SortedRow { key, tally }
            })
            .collect();
        rows.sort_by(|a, b| {
            (b.tally.time_ns, b.tally.count)
                .cmp(&(a.tally.time_ns, a.tally.count))
                .then_with(|| a.key.cmp(&b.key))
        });
        SortedTable { kind, isa: ledger.isa(), by: wanted, rows, total }
    }
}

/// Requests of confidential guests, of which there is one for each exit: they are no accesses of their own.
fn requests(ledger: &Ledger) -> impl Iterator<Item = (AccessKey, &Tally)> {
    use DetailKind as K;
    let is_request = |kind| matches!(kind, K::Ghcb | K::GhcbMsr | K::Tdvmcall);
    ledger.exits.iter().filter(move |(key, _)| is_request(key.detail.kind)).map(|(key, tally)| {
        let ExitKey { vm, vcpu, level, detail, .. } = *key;
        (AccessKey { vm, vcpu, level, detail }, tally)
    })
}
