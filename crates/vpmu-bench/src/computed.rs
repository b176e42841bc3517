//! Figures computed in virtual time: the policies over the same guests, their precision, the published tables.

use serde_json::{Value, json};
use vmtax_report::numbers;
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

    pub(crate) fn text(&self) -> String {
        [self.compared(), self.precision(), self.contention(), self.published()].concat()
    }

    /// All published and assumed constants.
    fn constants() -> String {
        let [general, fixed] = [0, 1].map(|i| {
            let (create, stop) = (published::CREATE[i], published::STOP[i]);
            format!("create {}, stop {}", numbers::count(create), numbers::count(stop))
        });
        format!(
            "Published costs, ns: general counters {general}; fixed ones {fixed}; read {}.\n\
             Assumed: enable, disable, set a period, and each access of an MSR of a mediated PMU take {ASSUMED} ns; an exit takes no\n\
             time; a guest exits every {EXITS} us for other reasons.\n",
            published::READ
        )
    }

    fn compared(&self) -> String {
        let Script { readings, samples, switches, .. } = self.script;
        let mut out = format!(
            "\nComputed in virtual time: the policies over the same guests ({readings} readings of six counters; {samples} samples;\n\
             {switches} switches of a thread with six counters). Accesses of MSRs are those of the host: of its perf at least, or of\n\
             saving and loading a mediated PMU. Blind: guest time that events of the host's own cannot count.\n\n\
             {:<18}{:<10}{:>8}{:>8}{:>8}{:>10}{:>12}{:>14}{:>9}\n",
            "guest",
            "policy",
            "creates",
            "exits",
            "passes",
            "MSR reads",
            "MSR writes",
            "host, us",
            "blind"
        );
        for c in &self.compared {
            out.push_str(&format!(
                "{:<18}{:<10}{:>8}{:>8}{:>8}{:>10}{:>12}{:>14}{:>7.0} %\n",
                c.guest,
                c.policy.name(),
                c.activity.creates,
                c.activity.exits,
                c.activity.passes,
                c.accesses.reads,
                c.accesses.writes,
                numbers::count(c.spent / 1000),
                100.0 * (1.0 - c.seen),
            ));
        }
        out + &Computed::constants()
    }

    fn precision(&self) -> String {
        let mut out = format!(
            "\nPrecision: samples, and shares of functions in percent with their errors. Computed: 5 s at about 4,000 samples a\n\
             second, where a host that costs nothing takes {}. Published: perf record -e cpu-cycles --all-user ./ftest, errors against\n\
             its host.\n\n{:<28}{:>8}",
            self.ideal, "", "samples"
        );
        FUNCTIONS.iter().for_each(|name| out.push_str(&format!("{name:>16}")));
        out.push('\n');
        let cell = |share: f64, error: f64| format!("{:>16}", format!("{share:.2} ({error:+.2})"));
        for (policy, profile) in &self.profiles {
            out.push_str(&format!(
                "{:<28}{:>8}",
                format!("computed, {}", policy.name()),
                profile.samples
            ));
            for share in &profile.shares {
                let (sampled, known) = (100.0 * share.sampled, 100.0 * share.known);
                out.push_str(&cell(sampled, sampled - known));
            }
            out.push('\n');
        }
        let host = PROFILES[PROFILES.len() - 1].shares;
        for published in PROFILES {
            out.push_str(&format!(
                "{:<28}{:>8}",
                format!("published, {}", published.place),
                published.samples
            ));
            for (share, host) in published.shares.iter().zip(host) {
                out.push_str(&cell(*share, share - host));
            }
            out.push('\n');
        }
        out
    }

    fn contention(&self) -> String {
        let mut out = format!(
            "\nUnder contention: six events of the guest, one of which samples, on {COUNTERS} counters, of which pinned events of\n\
             the host hold some. Counted: the least part of what happened that one of the other five has counted.\n\n\
             {:<10}{:>15}{:>9}{:>9}{:>8}{:>16}\n",
            "policy", "host holds", "samples", "counted", "blind", "shares"
        );
        for c in &self.contended {
            let (seen, worked) = c.profile.seen;
            let held = match c.policy {
                // They are the guest's while it runs.
                Policy::Mediated => format!("{}, off", c.taken),
                _ => c.taken.to_string(),
            };
            out.push_str(&format!(
                "{:<10}{held:>15}{:>9}{:>7.0} %{:>6.0} %{:>16}\n",
                c.policy.name(),
                c.profile.samples,
                100.0 * c.profile.counted,
                100.0 * (1.0 - seen as f64 / worked.max(1) as f64),
                if c.profile.precise() { "within gates" } else { "off" },
            ));
        }
        out.push_str(
            "A host event that counts guests and a VM with a mediated PMU exclude each other: the VM is refused while there is such\n\
             an event (EBUSY), and such an event is refused while there is the VM (EOPNOTSUPP).\n",
        );
        out
    }

    fn published(&self) -> String {
        let mut out = format!(
            "\nThe published tables (RFC v2, Linux 5.0, E5-2699 v4), computed by one script under legacy and reuse, ns of the host.\n\
             {}\
             computed: rests on published costs alone; inferred: on an assumed one too, and in brackets the ratio with {FIVE} times that\n\
             cost and with none; unknowable: nothing that was published says it.\n",
            Computed::constants()
        );
        for figure in Figure::ALL {
            out.push_str(&format!(
                "\n{:<22}{:>13}{:>13}{:>11}{:>11}  {}\n",
                figure.name(),
                "legacy",
                "reuse",
                "ratio",
                "published",
                "rests on"
            ));
            for row in self.tables.rows.iter().filter(|row| row.figure == figure) {
                out.push_str(&line(row));
            }
        }
        out
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

fn times(ratio: Option<f64>) -> String {
    ratio.map_or("-".to_owned(), |r| format!("{}x", numbers::significant(r)))
}

fn line(row: &Row) -> String {
    let rests = match row.standing {
        Standing::Computed => "computed".to_owned(),
        Standing::Inferred { least, most } => {
            let most = most.map_or("or more".to_owned(), |r| format!("to {}", times(Some(r))));
            format!("inferred ({} {most})", times(least))
        }
        Standing::Unknowable(why) => format!("unknowable: {why}"),
    };
    let [legacy, reuse] = row.ns.map(numbers::count);
    // Without a basis the ratio is not shown.
    let ratio = match row.standing {
        Standing::Unknowable(_) => None,
        _ => row.ratio,
    };
    format!(
        "{:<22}{legacy:>13}{reuse:>13}{:>11}{:>11}  {rests}\n",
        row.operation.name(),
        times(ratio),
        times(Some(row.published))
    )
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
