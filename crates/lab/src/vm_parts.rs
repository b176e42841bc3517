//! Parts of VMs under test that `vmtax bench` and `vmtax lab network` both have: what each changes, stated once.

use std::borrow::Cow;

use vmtax_events::setting::files;

/// What a part changes.
#[derive(Clone, Copy, Debug)]
pub struct VmPart {
    /// Description.
    pub about: &'static str,
    /// Words on the guest's command line; [`fill`] them in.
    pub guest: &'static [&'static str],
    /// Modules that the guest loads.
    pub modules: &'static [&'static str],
    /// Added to each virtio device.
    pub device: &'static str,
    /// Added to the tap's netdev.
    pub netdev: &'static str,
    /// Added to QEMU's model of the processor.
    pub cpu: &'static str,
    /// Settings of the host: file and content.
    pub host: &'static [(&'static str, &'static str)],
    /// A fact of the guest, and the word of it without which the guest does not have this part.
    pub shows: Option<(&'static str, &'static str)>,
}

const NONE: VmPart = VmPart {
    about: "",
    guest: &[],
    modules: &[],
    device: "",
    netdev: "",
    cpu: "",
    host: &[],
    shows: None,
};

/// The host's kernel is the network card's other side.
pub const VHOST: VmPart = VmPart {
    about: "the host's kernel works on the network card's queues (vhost_net)",
    netdev: ",vhost=on",
    ..NONE
};

/// A bounce buffer as a confidential guest has.
pub const SWIOTLB: VmPart = VmPart {
    about: "all that devices read and write goes through a bounce buffer of the size that Linux gives a confidential VM: 6 % of its memory, 64 MiB to 1 GiB",
    guest: &["swiotlb={slabs},force"],
    // Without it virtio devices do not use the DMA interface, and bypass the buffer.
    device: ",iommu_platform=on,disable-legacy=on",
    shows: Some(("command line", "swiotlb={slabs},force")),
    ..NONE
};

/// The guest never halts.
pub const POLL: VmPart = VmPart {
    about: "an idle vCPU polls and never halts (the guest's idle=poll)",
    guest: &["idle=poll"],
    shows: Some(("command line", "idle=poll")),
    ..NONE
};

/// The guest polls before it halts. The name is that of the categories of "Performance analysis of confidential VMs" (TU Munich, 2024).
pub const HPOLL: VmPart = VmPart {
    about: "an idle vCPU polls for a while before it halts (the guest's cpuidle_haltpoll.force=Y; its kernel needs CONFIG_CPU_IDLE_GOV_HALTPOLL, which Debian's 6.1 is without)",
    guest: &["cpuidle_haltpoll.force=Y"],
    modules: &["cpuidle_haltpoll"],
    // The driver alone polls nothing: with another governor it always halts.
    shows: Some(("idle governor", "haltpoll")),
    ..NONE
};

/// The host polls before the vCPU's thread sleeps.
pub const HALT_POLL_NS: VmPart = VmPart {
    about: "the host polls for up to 200 us before the thread of a halted vCPU sleeps (the host's kvm.halt_poll_ns)",
    host: &[(files::HALT_POLL, "200000")],
    ..NONE
};

/// The APIC's timer has no deadline mode.
pub const NO_TSC_DEADLINE: VmPart = VmPart {
    about: "the APIC's timer counts down from an initial count; there is no TSC deadline",
    cpu: ",-tsc-deadline",
    ..NONE
};

/// Bytes of a slot of the bounce buffer, and slots to a multiple of which Linux rounds (include/linux/swiotlb.h: `IO_TLB_SIZE`,
/// `IO_TLB_SEGSIZE`).
const SLOT: u64 = 2048;
const SEGMENT: u64 = 128;

/// MiB of the bounce buffer that Linux gives a confidential guest of this memory, rounded down to slots (arch/x86/mm/mem_encrypt.c,
/// `mem_encrypt_setup_arch`: 6 % of its memory, within 64 MiB and 1 GiB).
fn bounce_bytes(memory_mib: u32) -> u64 {
    (u64::from(memory_mib) << 20).saturating_mul(6).div_euclid(100).clamp(64 << 20, 1 << 30)
}

/// A word of [`VmPart::guest`] for a guest of this memory, with a bounce buffer of so many MiB or of Linux's choice.
pub fn fill(word: &'static str, memory_mib: u32, bounce_mib: Option<u32>) -> Cow<'static, str> {
    const SLABS: &str = "{slabs}";
    if !word.contains(SLABS) {
        return Cow::Borrowed(word);
    }
    let bytes = bounce_mib.map_or_else(|| bounce_bytes(memory_mib), |mib| u64::from(mib) << 20);
    let slabs = (bytes / SLOT).next_multiple_of(SEGMENT);
    Cow::Owned(word.replace(SLABS, &slabs.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounce_buffer_has_the_size_that_linux_gives_a_confidential_guest() {
        for (memory, named, slabs) in [
            (256, None, 32_768),
            (1024, None, 32_768),
            (1067, None, 32_896),
            (2048, None, 62_976),
            (16_384, None, 503_424),
            (65_536, None, 524_288),
            (1024, Some(16), 8_192),
        ] {
            let word = fill(SWIOTLB.guest[0], memory, named);
            assert_eq!(word, format!("swiotlb={slabs},force"), "{memory} {named:?}");
        }
        assert_eq!(fill("idle=poll", 1024, None), "idle=poll");
    }
}
