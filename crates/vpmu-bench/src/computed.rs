//! Figures computed in virtual time: the policies over the same guests, their precision, and published profiles.

use serde_json::{Value, json};
use vmtax_report::numbers;
use vmtax_report::table::{Cell, Column, Table};
use vmtax_report::tables::TitledTable;
use vmtax_vpmu::host::virtual_time::EventCosts;
use vmtax_vpmu::{Activity, Policy};

use crate::Error;
use crate::compare::{ComparedGuest, compare};
use crate::contention::{Contended, contended};
use crate::precision::{COUNTERS, SampledProfile, SampledShare, Sampling};
use crate::published::{self, ASSUMED, FUNCTIONS, PROFILES};
use crate::script::{EXITS, GuestScript};

/// The policies over the same guests, and their precision alone and under contention.
#[derive(Debug)]
pub struct Computed {
    script: GuestScript,
    compared: Vec<ComparedGuest>,
    /// Samples on a host whose operations take no time.
    ideal: u64,
    profiles: Vec<(Policy, SampledProfile)>,
    contended: Vec<Contended>,
}

impl Computed {
    /// Computes all of it; the same in every run.
    pub fn run() -> Result<Computed, Error> {
        let (script, sampling) = (GuestScript::default(), Sampling::default());
        let profile = |policy| Ok((policy, sampling.run(policy, published::costs(ASSUMED))?));
        Ok(Computed {
            script,
            compared: compare(&script)?,
            ideal: sampling.run(Policy::Reuse, EventCosts::default())?.samples,
            profiles: Policy::ALL.into_iter().map(profile).collect::<Result<_, Error>>()?,
            contended: contended(&sampling)?,
        })
    }

    pub(crate) fn sections(&self) -> Vec<TitledTable> {
        vec![self.policies(), self.contention(), self.precision(), shares(&self.profiles)]
    }

    /// All published and assumed constants.
    fn constants() -> String {
        let [general, fixed] = [0, 1].map(|i| {
            let (create, stop) = (published::CREATE[i], published::STOP[i]);
            format!("create {}, stop {}", numbers::count(create), numbers::count(stop))
        });
        format!(
            "Published costs, ns: general counters {general}; fixed ones {fixed}; read {}. Assumed: enable, disable, set a period, and \
             each access of an MSR of a mediated PMU take {ASSUMED} ns; an exit takes no time; a guest exits every {EXITS} us for other \
             reasons.",
            published::READ
        )
    }

    fn policies(&self) -> TitledTable {
        let GuestScript { readings, samples, switches, .. } = self.script;
        let table = Table::of(&self.compared)
            .column(Column::words("guest", "guest"), |c| Cell::Word(c.guest))
            .column(Column::short("policy", "policy"), |c| Cell::Word(c.policy.name()))
            .column(Column::number("creates", "creates"), |c| Cell::Count(c.activity.creates))
            .column(Column::number("exits", "exits"), |c| Cell::Count(c.activity.exits))
            .column(Column::number("passes", "passes"), |c| Cell::Count(c.activity.passes))
            .column(Column::number("msr_reads", "MSR reads"), |c| Cell::Count(c.accesses.reads))
            .column(Column::number("msr_writes", "MSR writes"), |c| Cell::Count(c.accesses.writes))
            .column(Column::number("host_ns", "host"), |c| Cell::Time(c.spent))
            .column(Column::number("blind", "blind"), |c| Cell::Share(1.0 - c.seen))
            .table();
        let notes = vec![
            format!(
                "The same guests: {readings} readings of six counters; {samples} samples; {switches} switches of a thread with six counters. \
                 Accesses of MSRs are those of the host: of its perf at least, or of saving and loading a mediated PMU. Blind: guest time \
                 that events of the host's own cannot count."
            ),
            Computed::constants(),
        ];
        let title = "Computed in virtual time: the policies over the same guests".to_owned();
        TitledTable { id: "policies", title, notes, table }
    }

    fn precision(&self) -> TitledTable {
        let host = PROFILES[PROFILES.len() - 1].shares;
        let computed = self.profiles.iter().map(|(policy, profile)| {
            let errors = profile.shares.iter().map(|share| 100.0 * (share.sampled - share.known));
            ("computed", policy.name(), profile.samples, largest(errors))
        });
        let published = PROFILES.iter().map(|published| {
            let errors = published.shares.iter().zip(host).map(|(share, host)| share - host);
            ("published", published.place, published.samples, largest(errors))
        });
        let table = Table::of(computed.chain(published))
            .column(Column::short("basis", "basis"), |(basis, ..)| Cell::Word(basis))
            .column(Column::words("guest", "guest"), |(_, guest, ..)| Cell::Word(guest))
            .column(Column::number("samples", "samples"), |(.., samples, _)| Cell::Count(*samples))
            .column(
                Column::number("error_points", "largest error")
                    .help("of a function's share, in percentage points"),
                |(.., error)| Cell::Delta(*error),
            )
            .table();
        let note = format!(
            "Computed: 5 s at about 4,000 samples a second, where a host that costs nothing takes {}; errors against the program's shares. \
             Published: perf record -e cpu-cycles --all-user ./ftest; errors against its host.",
            numbers::count(self.ideal)
        );
        let title =
            "Precision: samples, and the largest error of a function's share, in percentage points"
                .to_owned();
        TitledTable { id: "precision", title, notes: vec![note], table }
    }

    fn contention(&self) -> TitledTable {
        let table = Table::of(&self.contended)
            .column(Column::words("policy", "policy"), |c| Cell::Word(c.policy.name()))
            .column(Column::number("held", "host holds"), |c| Cell::Count(c.taken as u64))
            .column(Column::short("host_events", "host's events"), |c| {
                // Counters are the guest's while it runs.
                Cell::Word(if c.policy == Policy::Mediated { "off" } else { "on" })
            })
            .column(Column::number("samples", "samples"), |c| Cell::Count(c.profile.samples))
            .column(Column::number("counted", "counted"), |c| Cell::Share(c.profile.counted))
            .column(Column::number("blind", "blind"), |c| {
                let (seen, worked) = c.profile.seen;
                Cell::Share(1.0 - seen as f64 / worked.max(1) as f64)
            })
            .column(Column::short("shares", "shares"), |c| {
                Cell::Word(if c.profile.precise() { "within gates" } else { "off" })
            })
            .table();
        let notes = vec![
            format!(
                "Six events of the guest, one of which samples, on {COUNTERS} counters, of which pinned events of the host hold some. \
                 Counted: the least part of what happened that one of the other five has counted."
            ),
            "A host event that counts guests and a VM with a mediated PMU exclude each other: the VM is refused while there is such an \
             event (EBUSY), and such an event is refused while there is the VM (EOPNOTSUPP)."
                .to_owned(),
        ];
        TitledTable {
            id: "contention",
            title: "Precision under contention".to_owned(),
            notes,
            table,
        }
    }

    pub(crate) fn json(&self) -> Value {
        let compared = self.compared.iter().map(|c| {
            json!({
                "guest": c.guest,
                "policy": c.policy.name(),
                "activity": activity(&c.activity),
                "msr": { "reads": c.accesses.reads, "writes": c.accesses.writes },
                "host_ns": c.spent,
                "seen": c.seen,
            })
        });
        let profiles =
            self.profiles.iter().map(|(policy, p)| with("policy", policy.name(), profile(p)));
        let published = PROFILES.iter().map(|p| {
            let shares = FUNCTIONS.iter().zip(p.shares);
            json!({
                "place": p.place,
                "samples": p.samples,
                "shares": shares.map(|(function, share)| json!({ "function": function, "sampled": share / 100.0 })).collect::<Vec<_>>(),
            })
        });
        let contended = self.contended.iter().map(|c| {
            let with_policy = with("policy", c.policy.name(), profile(&c.profile));
            with("held", c.taken, with_policy)
        });
        json!({
            "assumed_ns": ASSUMED,
            "exits_us": EXITS,
            "policies": compared.collect::<Vec<_>>(),
            "precision": {
                "ideal_samples": self.ideal,
                "computed": profiles.collect::<Vec<_>>(),
                "published": published.collect::<Vec<_>>(),
            },
            "contention": contended.collect::<Vec<_>>(),
        })
    }
}

/// The shares of functions by basis and guest.
fn shares(profiles: &[(Policy, SampledProfile)]) -> TitledTable {
    let share = |at: usize, policy: usize| profiles.get(policy)?.1.shares.get(at);
    let computed =
        |at: usize, policy: usize| Cell::of(share(at, policy), |share| Cell::Share(share.sampled));
    let published = |at: usize, place: usize| Cell::Share(PROFILES[place].shares[at] / 100.0);
    let table = Table::of(0..FUNCTIONS.len())
        .column(Column::words("function", "function"), |at| Cell::Word(FUNCTIONS[*at]))
        .column(Column::number("known", "program"), |at| {
            Cell::of(share(*at, 0), |share| Cell::Share(share.known))
        })
        .column(Column::number("computed_legacy", "legacy").named("computed, legacy"), |at| {
            computed(*at, 0)
        })
        .column(Column::number("computed_reuse", "reuse").named("computed, reuse"), |at| {
            computed(*at, 1)
        })
        .column(Column::number("computed_mediated", "mediated").named("computed, mediated"), |at| {
            computed(*at, 2)
        })
        .column(
            Column::number("published_legacy", "published legacy")
                .named("published, guest, legacy"),
            |at| published(*at, 0),
        )
        .column(
            Column::number("published_version_2", "version 2").named("published, guest, version 2"),
            |at| published(*at, 1),
        )
        .column(Column::number("published_host", "host").named("published, host"), |at| {
            published(*at, 2)
        })
        .table();
    let title = "Shares of functions: of the program, of samples under each policy, and published"
        .to_owned();
    TitledTable { id: "shares", title, notes: Vec::new(), table }
}

/// The error that is furthest from none.
fn largest(errors: impl Iterator<Item = f64>) -> f64 {
    errors.fold(0.0, |a: f64, b: f64| if b.abs() > a.abs() { b } else { a })
}

fn with(key: &str, entry: impl Into<Value>, mut value: Value) -> Value {
    value[key] = entry.into();
    value
}

fn profile(profile: &SampledProfile) -> Value {
    let share = |share: &SampledShare| json!({ "function": share.function, "known": share.known, "sampled": share.sampled, "gate": share.gate });
    let (seen, worked) = profile.seen;
    json!({
        "samples": profile.samples,
        "shares": profile.shares.iter().map(share).collect::<Vec<_>>(),
        "precise": profile.precise(),
        "counted": profile.counted,
        "seen": seen as f64 / worked.max(1) as f64,
        "activity": activity(&profile.activity),
    })
}

fn activity(a: &Activity) -> Value {
    json!({
        "exits": a.exits,
        "passes": a.passes,
        "slices": a.slices,
        "world_switches": { "reads": a.world_switches.reads, "writes": a.world_switches.writes },
        "creates": a.creates,
        "closes": a.closes,
        "enables": a.enables,
        "disables": a.disables,
        "reads": a.reads,
        "periods": a.periods,
        "interrupts": a.interrupts,
        "delivered": a.delivered,
        "merged": a.merged,
        "dropped": a.dropped,
        "throttles": a.throttles,
    })
}
