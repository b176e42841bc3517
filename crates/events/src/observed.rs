//! What texts of ordinary tools show of a VM or its host: no exits, and no profile.

use crate::words::words;

words! {
    /// A clock that is a device: each reading by a guest is an exit.
    pub enum DeviceClock {
        /// The HPET.
        Hpet = "hpet",
        /// The ACPI PM timer.
        AcpiPm = "acpi_pm",
    }
}

words! {
    /// A thread of a host's kernel that works for VMs, or against them.
    pub enum KernelThread {
        /// Merges pages.
        Ksmd = "ksmd",
        /// Moves pages to make huge ones.
        Kcompactd = "kcompactd",
        /// Makes huge pages of small ones.
        Khugepaged = "khugepaged",
        /// Takes memory back.
        Kswapd = "kswapd",
        /// Ticks of KVM's PIT.
        KvmPit = "kvm-pit",
    }
}

/// One thing that a text shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Observed {
    /// The part of a guest's processor time that its host gave to others.
    Steal(f64),
    /// Periods of a CPU quota, and those in which it was used up.
    Throttled {
        /// In which it was used up.
        throttled: u64,
        /// All.
        periods: u64,
    },
    /// The clock that is in use is a device.
    Clock(DeviceClock),
    /// A thread of the kernel takes this part of a processor.
    Thread(KernelThread, f64),
    /// Memory that goes to swap and comes back, KiB a second.
    Swapping {
        /// To swap.
        out: f64,
        /// From swap.
        back: f64,
    },
    /// The part of a guest's interrupts that are on the PIT's line, or on the RTC's, of so many.
    Line {
        /// The RTC's; else the PIT's.
        rtc: bool,
        /// On that line.
        count: u64,
        /// Of all lines and vectors.
        all: u64,
    },
    /// KVM cannot be used.
    NoKvm,
}
