//! Where the time of a vCPU goes. The parts are one list: a line in it is a field of [`TimeRow`], a column of the run
//! folder and a figure of every output.

use crate::Coverage;

/// A part of a vCPU's time.
#[derive(Clone, Copy, Debug)]
pub struct TimePart {
    /// The word for it in CSV, metrics and tables: `exit-kernel`.
    pub name: &'static str,
    /// The column of the run folder and the key in JSON: `exit_kernel_ns`.
    pub column: &'static str,
    /// What the vCPU was doing, for a legend.
    pub explain: &'static str,
    /// Its time in a row, ns.
    pub of: fn(&TimeRow) -> u64,
    /// The same, to be changed.
    pub of_mut: fn(&mut TimeRow) -> &mut u64,
    /// Whether a recording could tell it from the other parts.
    pub is_told: fn(&Coverage) -> bool,
    /// The part that it is within, of those before it; `None`: of the wall time itself.
    pub within: Option<&'static str>,
    /// Runs of older versions have no such column; it reads as 0 then.
    pub is_later: bool,
}

impl TimePart {
    /// Its time, without that of the parts within it.
    pub fn own(&self, time: &TimeRow) -> u64 {
        let inner = TimeRow::PARTS.iter().filter(|part| part.within == Some(self.name));
        inner.fold((self.of)(time), |left, part| left.saturating_sub((part.of)(time)))
    }

    const fn told_by(self, is_told: fn(&Coverage) -> bool) -> TimePart {
        TimePart { is_told, ..self }
    }

    const fn inside(self, part: &'static str) -> TimePart {
        TimePart { within: Some(part), ..self }
    }

    const fn later(self) -> TimePart {
        TimePart { is_later: true, ..self }
    }

    /// Its time where the recording can tell it.
    pub fn told(&self, time: &TimeRow, coverage: &Coverage) -> Option<u64> {
        (self.is_told)(coverage).then(|| (self.of)(time))
    }
}

/// Declares [`TimeRow`] and its parts: `field: "word", "explanation" [, what else holds of the part];`.
macro_rules! parts {
    ($($(#[$doc:meta])* $field:ident: $name:literal, $explain:literal
        $(, $key:ident($($value:expr)?))*;)+) => {
        /// Where the time of one vCPU went in one interval, ns. Spans belong to the interval they end in.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct TimeRow {
            /// Start of the interval on the recorder's clock, ns.
            pub interval_start_ns: u64,
            /// [`crate::Vm::id`].
            pub vm: u32,
            pub vcpu: u32,
            /// All time between the vCPU's first and last event.
            pub wall_ns: u64,
            $($(#[$doc])* pub $field: u64,)+
        }

        impl TimeRow {
            /// The parts, in the order of columns, tables and bars.
            pub const PARTS: &[TimePart] = &[$(TimePart {
                name: $name,
                column: stringify!($field),
                explain: $explain,
                of: |time| time.$field,
                of_mut: |time| &mut time.$field,
                is_told: |_| true,
                within: None,
                is_later: false,
            }$(.$key($($value)?))*),+];
        }
    };
}

parts! {
    /// In guest mode.
    guest_ns: "guest", "running the guest's code";
    /// The part of `guest_ns` in which the guest's guest ran. It is known with the
    /// `kvm_nested_vmexit` that follows: where an interval ends just between, one row's can be larger than
    /// its `guest_ns`; the sums never are.
    l2_ns: "L2", "running the code of the guest's guest",
        told_by(|coverage| coverage.nested), inside("guest"), later();
    /// Handling exits in the kernel.
    exit_kernel_ns: "exit-kernel", "handling exits in the host kernel";
    /// Handling exits in the VMM.
    exit_user_ns: "exit-user", "handling exits in the VMM", told_by(|coverage| coverage.userspace);
    /// Halted, polling included.
    halted_ns: "halted", "halted by the guest";
    /// Preempted while handling an exit. (A vCPU is only ever preempted outside guest mode.)
    preempted_ns: "preempted", "off its CPU while handling an exit", told_by(|coverage| coverage.sched);
    /// Unknown time: exits or entries are missing around it.
    unknown_ns: "unknown", "events are missing around it";
}

impl TimeRow {
    /// The parts that add up to the wall time.
    pub fn whole_parts() -> impl Iterator<Item = &'static TimePart> + Clone {
        TimeRow::PARTS.iter().filter(|part| part.within.is_none())
    }

    /// Adds the time of another row, part by part. Interval, VM and vCPU stay.
    pub fn add(&mut self, other: &TimeRow) {
        self.wall_ns = self.wall_ns.saturating_add(other.wall_ns);
        for part in TimeRow::PARTS {
            let sum = (part.of_mut)(self);
            *sum = sum.saturating_add((part.of)(other));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words and columns are stored: one that changes makes old runs unreadable.
    #[test]
    fn names() {
        let names: Vec<_> =
            TimeRow::PARTS.iter().take(7).map(|part| (part.name, part.column)).collect();
        assert_eq!(
            names,
            [
                ("guest", "guest_ns"),
                ("L2", "l2_ns"),
                ("exit-kernel", "exit_kernel_ns"),
                ("exit-user", "exit_user_ns"),
                ("halted", "halted_ns"),
                ("preempted", "preempted_ns"),
                ("unknown", "unknown_ns"),
            ]
        );
        assert!(TimeRow::PARTS.iter().skip(7).all(|part| part.is_later), "old runs lack it");
    }

    #[test]
    fn every_part_is_added_and_has_its_own_place() {
        let mut row = TimeRow { vm: 7, wall_ns: 1, ..TimeRow::default() };
        for (n, part) in (1..).zip(TimeRow::PARTS) {
            *(part.of_mut)(&mut row) = n;
        }
        let mut sum = row;
        sum.add(&row);
        assert_eq!((sum.vm, sum.wall_ns), (7, 2));
        for (n, part) in (1..).zip(TimeRow::PARTS) {
            assert_eq!(((part.of)(&row), (part.of)(&sum)), (n, 2 * n), "{}", part.name);
        }
        sum.add(&TimeRow { halted_ns: u64::MAX, ..row });
        assert_eq!(sum.halted_ns, u64::MAX);
    }

    #[test]
    fn a_part_is_without_those_within_it() {
        let time = TimeRow { guest_ns: 10, l2_ns: 4, ..TimeRow::default() };
        assert_eq!((TimeRow::PARTS[0].own(&time), TimeRow::PARTS[1].own(&time)), (6, 4));
        assert!(TimeRow::whole_parts().all(|part| part.within.is_none() && part.name != "L2"));
        let blind = Coverage::default();
        assert_eq!(TimeRow::PARTS[1].told(&time, &blind), None);
    }
}
