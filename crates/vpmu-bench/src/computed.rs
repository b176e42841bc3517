//! Figures computed in virtual time: the policies over the same guests, their precision, the published tables.

use serde_json::{Value, json};
use vmtax_report::numbers;
use vmtax_report::table::{Cell, Column, Table};
use vmtax_report::tables::Section;
use vmtax_vpmu::host::virtual_time::Costs;
use vmtax_vpmu::{Activity, Policy};

use crate::Error;
use crate::compare::{Compared, compare};
use crate::contention::{Contended, contended};
use crate::operation::Figure;
use crate::precision::{COUNTERS, Profile, Sampling, Share};
use crate::published::{self, ASSUMED, FUNCTIONS, PROFILES};
use crate::script::{EXITS, Script};
use crate::tables::{FIVE, Row, Standing, Tables, tables};

/// The policies over the same guests, their precision alone and under contention, and the published tables.
#[derive(Debug)]
pub struct Computed {
    script: Script,
    compared: Vec<Compared>,
    /// Samples on a host whose operations take no time.
    ideal: u64,
    profiles: Vec<(Policy, Profile)>,
    contended: Vec<Contended>,
    tables: Tables,
}

impl Computed {
    /// Computes all of it; the same in every run.
    ///
    /// # Errors
    /// When a virtual PMU cannot be made.
    pub fn run() -> Result<Computed, Error> {
        let (script, sampling) = (Script::default(), Sampling::default());
        let profile = |policy| Ok((policy, sampling.run(policy, published::costs(ASSUMED))?));
        Ok(Computed {
            script,
            compared: compare(&script)?,
            ideal: sampling.run(Policy::Reuse, Costs::default())?.samples,
            profiles: Policy::ALL.into_iter().map(profile).collect::<Result<_, Error>>()?,
            contended: contended(&sampling)?,
            tables: tables(&script)?,
        })
    }

    pub(crate) fn sections(&self) -> Vec<Section> {
        let mut sections =
            vec![self.policies(), self.precision(), shares(&self.profiles), self.contention()];
        sections.push(self.published());
        sections
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

    fn policies(&self) -> Section {
        let Script { readings, samples, switches, .. } = self.script;
        let mut table = Table::new(vec![
            Column::words("guest", "guest"),
            Column::short("policy", "policy"),
            Column::number("creates", "creates"),
            Column::number("exits", "exits"),
            Column::number("passes", "passes"),
            Column::number("msr_reads", "MSR reads"),
            Column::number("msr_writes", "MSR writes"),
            Column::number("host_ns", "host"),
            Column::number("blind", "blind"),
        ]);
        for c in &self.compared {
            let a = &c.activity;
            let mut cells = vec![Cell::Word(c.guest), Cell::Word(c.policy.name())];
            let counts = [a.creates, a.exits, a.passes, c.accesses.reads, c.accesses.writes];
            cells.extend(counts.map(Cell::Count));
            cells.extend([Cell::Time(c.spent), Cell::Share(1.0 - c.seen)]);
            table.row(cells);
        }
        let notes = vec![
            format!(
                "The same guests: {readings} readings of six counters; {samples} samples; {switches} switches of a thread with six counters. \
                 Accesses of MSRs are those of the host: of its perf at least, or of saving and loading a mediated PMU. Blind: guest time \
                 that events of the host's own cannot count."
            ),
            Computed::constants(),
        ];
        let title = "Computed in virtual time: the policies over the same guests".to_owned();
        Section { id: "policies", title, notes, table }
    }

    fn precision(&self) -> Section {
        let mut table = Table::new(vec![
            Column::short("basis", "basis"),
            Column::words("guest", "guest"),
            Column::number("samples", "samples"),
            Column::number("error_points", "largest error")
                .help("of a function's share, in percentage points"),
        ]);
        let largest = |errors: &mut dyn Iterator<Item = f64>| {
            let larger = |a: f64, b: f64| if b.abs() > a.abs() { b } else { a };
            Cell::Delta(errors.fold(0.0, larger))
        };
        for (policy, profile) in &self.profiles {
            let mut errors =
                profile.shares.iter().map(|share| 100.0 * (share.sampled - share.known));
            table.row(vec![
                Cell::Word("computed"),
                Cell::Word(policy.name()),
                Cell::Count(profile.samples),
                largest(&mut errors),
            ]);
        }
        let host = PROFILES[PROFILES.len() - 1].shares;
        for published in PROFILES {
            let mut errors = published.shares.iter().zip(host).map(|(share, host)| share - host);
            table.row(vec![
                Cell::Word("published"),
                Cell::Word(published.place),
                Cell::Count(published.samples),
                largest(&mut errors),
            ]);
        }
        let note = format!(
            "Computed: 5 s at about 4,000 samples a second, where a host that costs nothing takes {}; errors against the program's shares. \
             Published: perf record -e cpu-cycles --all-user ./ftest; errors against its host.",
            numbers::count(self.ideal)
        );
        let title =
            "Precision: samples, and the largest error of a function's share, in percentage points"
                .to_owned();
        Section { id: "precision", title, notes: vec![note], table }
    }

    fn contention(&self) -> Section {
        let mut table = Table::new(vec![
            Column::words("policy", "policy"),
            Column::number("held", "host holds"),
            Column::short("host_events", "host's events"),
            Column::number("samples", "samples"),
            Column::number("counted", "counted"),
            Column::number("blind", "blind"),
            Column::short("shares", "shares"),
        ]);
        for c in &self.contended {
            let (seen, worked) = c.profile.seen;
            // Counters are the guest's while it runs.
            let off = c.policy == Policy::Mediated;
            table.row(vec![
                Cell::Word(c.policy.name()),
                Cell::Count(c.taken as u64),
                Cell::Word(if off { "off" } else { "on" }),
                Cell::Count(c.profile.samples),
                Cell::Share(c.profile.counted),
                Cell::Share(1.0 - seen as f64 / worked.max(1) as f64),
                Cell::Word(if c.profile.precise() { "within gates" } else { "off" }),
            ]);
        }
        let notes = vec![
            format!(
                "Six events of the guest, one of which samples, on {COUNTERS} counters, of which pinned events of the host hold some. \
                 Counted: the least part of what happened that one of the other five has counted."
            ),
            "A host event that counts guests and a VM with a mediated PMU exclude each other: the VM is refused while there is such an \
             event (EBUSY), and such an event is refused while there is the VM (EOPNOTSUPP)."
                .to_owned(),
        ];
        Section { id: "contention", title: "Precision under contention".to_owned(), notes, table }
    }

    fn published(&self) -> Section {
        let mut table = Table::new(vec![
            Column::data("figure"),
            Column::words("operation", "operation"),
            Column::number("legacy_ns", "legacy, ns"),
            Column::number("reuse_ns", "reuse, ns"),
            Column::number("ratio", "ratio"),
            Column::number("published_ratio", "published"),
            Column::short("standing", "rests on"),
            Column::number("least", "from"),
            Column::number("most", "to"),
            Column::words("why", "why"),
        ]);
        for figure in Figure::ALL {
            let rows = self.tables.rows.iter().filter(|row| row.figure == figure);
            for (at, row) in rows.enumerate() {
                match at {
                    0 => table.first_of(figure.name().to_owned(), cells(row)),
                    _ => table.row(cells(row)),
                }
            }
        }
        let notes = vec![
            "RFC v2, Linux 5.0, E5-2699 v4; computed by one script under legacy and reuse."
                .to_owned(),
            Computed::constants(),
            format!(
                "computed: rests on published costs alone; inferred: on an assumed one too, with the ratios for {FIVE} times that cost and \
                 for none; unknowable: no published figure determines it."
            ),
        ];
        Section { id: "published", title: "The published tables".to_owned(), notes, table }
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
            "published": self.tables.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

/// The shares of functions by basis and guest.
fn shares(profiles: &[(Policy, Profile)]) -> Section {
    let mut table = Table::new(vec![
        Column::words("function", "function"),
        Column::number("known", "program"),
        Column::number("computed_legacy", "legacy").named("computed, legacy"),
        Column::number("computed_reuse", "reuse").named("computed, reuse"),
        Column::number("computed_mediated", "mediated").named("computed, mediated"),
        Column::number("published_legacy", "published legacy").named("published, guest, legacy"),
        Column::number("published_version_2", "version 2").named("published, guest, version 2"),
        Column::number("published_host", "host").named("published, host"),
    ]);
    for (at, name) in FUNCTIONS.into_iter().enumerate() {
        let share = |(_, profile): &(Policy, Profile)| profile.shares.get(at).copied();
        let known = profiles.first().and_then(share).map(|share| share.known);
        let mut cells = vec![Cell::Word(name), Cell::of(known, Cell::Share)];
        cells.extend(
            profiles.iter().map(|p| Cell::of(share(p), |share| Cell::Share(share.sampled))),
        );
        cells.extend(PROFILES.map(|published| Cell::Share(published.shares[at] / 100.0)));
        table.row(cells);
    }
    let title = "Shares of functions: of the program, of samples under each policy, and published"
        .to_owned();
    Section { id: "shares", title, notes: Vec::new(), table }
}

fn cells(row: &Row) -> Vec<Cell> {
    // Without a basis the ratio is not shown.
    let (ratio, least, most, why) = match row.standing {
        Standing::Computed => (row.ratio, None, None, ""),
        Standing::Inferred { least, most } => (row.ratio, least, most, ""),
        Standing::Unknowable(why) => (None, None, None, why),
    };
    let bound = |bound: Option<f64>| bound.map_or(Cell::Empty, Cell::Number);
    vec![
        Cell::Word(match row.figure {
            Figure::Max => "max",
            Figure::Total => "total",
        }),
        Cell::Word(row.operation.name()),
        Cell::Count(row.ns[0]),
        Cell::Count(row.ns[1]),
        Cell::of(ratio, Cell::Number),
        Cell::Number(row.published),
        Cell::Word(row.standing.name()),
        bound(least),
        match row.standing {
            Standing::Inferred { most: None, .. } => Cell::Unknown("unbounded"),
            _ => bound(most),
        },
        Cell::Word(why),
    ]
}

fn row(row: &Row) -> Value {
    let mut value = json!({
        "operation": row.operation.name(),
        "figure": match row.figure { Figure::Max => "max", Figure::Total => "total" },
        "legacy_ns": row.ns[0],
        "reuse_ns": row.ns[1],
        "ratio": row.ratio,
        "published_ratio": row.published,
        "standing": row.standing.name(),
    });
    match row.standing {
        Standing::Computed => {}
        Standing::Inferred { least, most } => value["range"] = json!([least, most]),
        Standing::Unknowable(why) => value["why"] = why.into(),
    }
    value
}

fn with(key: &str, entry: impl Into<Value>, mut value: Value) -> Value {
    value[key] = entry.into();
    value
}

fn profile(profile: &Profile) -> Value {
    let share = |share: &Share| json!({ "function": share.function, "known": share.known, "sampled": share.sampled, "gate": share.gate });
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
