//! What a trial of a remedy showed, or why there was none.

use vmtax_analyse::remedy::{Figures, Trial, TrialEffect, TrialUnit, Tried};

use crate::numbers::{fixed, whole};

/// A trial in one clause: `tried: 28.3 -> 2.85 to 2.86 exits per read of 4 KiB (AMD, emulated, Linux 6.1)`.
pub(crate) fn trial(trial: &Trial) -> String {
    match trial {
        Trial::Tried(tried) => format!("tried: {} ({})", figures(tried), place(tried)),
        Trial::Untried(why) => format!("untried: {}", why.name()),
    }
}

/// The same with what came instead.
pub fn whole_trial(one: &Trial) -> String {
    match one {
        Trial::Tried(Tried { note: Some(note), .. }) => format!("{}; {note}", trial(one)),
        _ => trial(one),
    }
}

/// The counts, and what the remedy did not do to them.
fn figures(tried: &Tried) -> String {
    let (before, after) = (range(tried.before), range(tried.after));
    let counts = format!("{before} -> {after} {} per {}", tried.unit.name(), tried.per);
    match (tried.effect(), tried.unit) {
        (TrialEffect::Same, TrialUnit::Exits) => format!("removes no exit, {counts}"),
        (TrialEffect::Same, _) => format!("changes nothing, {counts}"),
        (TrialEffect::More, _) => format!("takes more, {counts}"),
        (TrialEffect::Fewer, _) => counts,
    }
}

/// The emulated host and the release of its kernel, without its third number.
fn place(tried: &Tried) -> String {
    let release: Vec<&str> = tried.kernel.split('.').take(2).collect();
    format!("{}, emulated, Linux {}", tried.host.name(), release.join("."))
}

fn range(figures: Figures) -> String {
    let (least, most) = (number(figures.least), number(figures.most));
    if least == most { least } else { format!("{least} to {most}") }
}

/// Three digits, and no part of an exit where there are hundreds.
fn number(figure: f64) -> String {
    match figure {
        _ if figure == 0.0 || figure >= 100.0 => whole(figure),
        _ if figure < 0.005 => "<0.01".to_owned(),
        _ if figure >= 10.0 => fixed(figure, 1),
        _ => fixed(figure, 2),
    }
}

#[cfg(test)]
mod tests {
    use vmtax_analyse::remedy::RemedyId;

    use super::*;

    #[test]
    fn trials_are_read_in_one_line() {
        for (id, says) in [
            (
                RemedyId::VirtioDisk,
                "tried: 28.3 -> 2.85 to 2.86 exits per read of 4 KiB (AMD, emulated, Linux 6.1); 16 accesses of IDE and 10 of bus mastering become a notification",
            ),
            (
                RemedyId::Ioeventfd,
                "tried: takes more, 2.10 to 2.12 -> 2.54 exits per read of 4 KiB (AMD, emulated, Linux 6.1); shortens each: exits to the VMM 1.0 -> 0, and the vCPU halts, 0 -> 0.42",
            ),
            (
                RemedyId::HaltPoll,
                "tried: removes no exit, 3.98 to 4.02 -> 4.06 to 4.09 exits per sleep of 50 us (AMD, emulated, Linux 6.1); the wait gets shorter, which is no exit",
            ),
            (
                RemedyId::Avic,
                "untried: no open emulator has an APIC virtualization that a Linux guest survives",
            ),
        ] {
            assert_eq!(whole_trial(&id.trial()), says);
        }
    }
}
