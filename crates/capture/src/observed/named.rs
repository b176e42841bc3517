//! Names in prose, call chains and excerpts that are known costs of VMs. A name shows no cost: what it may mean is said, and what to measure.

use vmtax_events::observed::{NamedCost, Observed};

use super::lines;

/// Names, each with its source. More than one of a text is said.
const NAMES: &[(&str, NamedCost)] = &[
    // Linux Documentation/admin-guide/mm/userfaultfd.rst.
    ("userfaultfd", NamedCost::Userfaultfd),
    ("--uffd", NamedCost::Userfaultfd),
    // Linux drivers/iommu/iommufd/ioas.c, drivers/vfio/vfio_iommu_type1.c.
    ("IOMMU_IOAS_MAP", NamedCost::IommuMap),
    ("VFIO_IOMMU_MAP_DMA", NamedCost::IommuMap),
    ("vfio_pin_pages_remote", NamedCost::IommuMap),
    ("vfio_pin_map_dma", NamedCost::IommuMap),
    // Intel, TDX module: TDG.MEM.PAGE.ACCEPT; Linux drivers/firmware/efi/unaccepted_memory.c; AMD APM, PVALIDATE.
    ("TDG.MEM.PAGE.ACCEPT", NamedCost::AcceptMemory),
    ("TDH.MEM.PAGE.AUG", NamedCost::AcceptMemory),
    ("accept_memory", NamedCost::AcceptMemory),
    ("unaccepted memory", NamedCost::AcceptMemory),
    ("PVALIDATE", NamedCost::AcceptMemory),
    // Linux arch/x86/kvm/vmx/vmx.c, svm/svm.c, mmu/mmu.c.
    ("handle_ept_violation", NamedCost::HostFaults),
    ("npf_interception", NamedCost::HostFaults),
    ("kvm_mmu_faultin_pfn", NamedCost::HostFaults),
    ("kvm_tdp_page_fault", NamedCost::HostFaults),
    // Linux kernel/fork.c.
    ("dup_mmap", NamedCost::Fork),
    // Linux arch/x86/kernel/cpu/bus_lock.c.
    ("split_lock_warn", NamedCost::SplitLocks),
    // Linux Documentation/admin-guide/serial-console.rst; an emulated 8250 exits at each access.
    ("console=ttyS", NamedCost::SerialConsole),
    // Linux drivers/virtio/virtio_balloon.c.
    ("virtio_balloon", NamedCost::Balloon),
    ("virtio-balloon", NamedCost::Balloon),
    ("balloon-worker", NamedCost::Balloon),
    ("4 KiB pages", NamedCost::SmallPages),
    ("4KiB pages", NamedCost::SmallPages),
    ("4 KB pages", NamedCost::SmallPages),
    ("4K pages", NamedCost::SmallPages),
    // Linux Documentation/filesystems/proc.rst on /proc/stat.
    ("steal time", NamedCost::Steal),
    ("CPU steal", NamedCost::Steal),
    ("%steal", NamedCost::Steal),
    // vdso(7): strace does not see calls that the vDSO answers.
    ("clock_gettime(CLOCK_", NamedCost::ClockCalls),
    // Linux arch/x86/kvm/svm/svm.c and vmx/vmx.c: module parameters.
    ("npt=0", NamedCost::ShadowPaging),
    ("ept=0", NamedCost::ShadowPaging),
    ("npt=N", NamedCost::ShadowPaging),
    ("ept=N", NamedCost::ShadowPaging),
    // Linux arch/x86/kvm/mmu/mmu.c and virt/kvm/kvm_main.c.
    ("kvm_unmap_hva_range", NamedCost::Unmapping),
    ("kvm_mmu_notifier_invalidate_range", NamedCost::Unmapping),
    ("kvm_mmu_unmap_gfn_range", NamedCost::Unmapping),
    // Linux Documentation/virt/kvm/x86/nested-vmx.rst.
    ("nested VM", NamedCost::Nested),
    ("nested virtualization", NamedCost::Nested),
    ("from L2", NamedCost::Nested),
    ("L2 guest", NamedCost::Nested),
];

/// The costs that a text names, each once.
pub(super) fn costs(text: &str) -> Vec<Observed> {
    let mut found: Vec<Observed> = Vec::new();
    for (words, cost) in NAMES {
        let observed = Observed::Named(*cost);
        if !found.contains(&observed) && lines(text).any(|line| line.contains(words)) {
            found.push(observed);
        }
    }
    if measures_host_cache(text) {
        found.push(Observed::Named(NamedCost::HostCache));
    }
    found
}

/// A benchmark of a disk in a text that shows the VMM's command line: QEMU's default is cache=writeback (qemu-options.hx), Cloud Hypervisor's direct=off
/// (docs/device_model.md).
fn measures_host_cache(text: &str) -> bool {
    let is_benchmark = lines(text).any(|line| {
        line.contains("READ: bw=") || line.contains("WRITE: bw=") || line.contains(" copied, ")
    });
    let is_cached = |line: &str| {
        let of_qemu =
            line.contains("qemu-system-") && line.contains("-drive") && line.contains("file=");
        let of_cloud =
            line.contains("cloud-hypervisor") && line.contains("--disk") && line.contains("path=");
        let passes = ["cache=none", "cache=directsync", "cache.direct=on", "direct=on"];
        (of_qemu || of_cloud) && !passes.iter().any(|word| line.contains(word))
    };
    is_benchmark && lines(text).any(is_cached)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_said_once() {
        let named = |text: &str| costs(text);
        let is = |cost| vec![Observed::Named(cost)];
        assert_eq!(named("dup_mm -> dup_mmap\n dup_mmap\n"), is(NamedCost::Fork));
        assert_eq!(
            named("all of it in ioctl(9, VFIO_IOMMU_MAP_DMA, x)\n"),
            is(NamedCost::IommuMap)
        );
        assert_eq!(
            named("a clone by userfaultfd, whose memory has 4 KiB pages\n"),
            [Observed::Named(NamedCost::Userfaultfd), Observed::Named(NamedCost::SmallPages)]
        );
        assert_eq!(named("we loaded kvm_amd with npt=0\n"), is(NamedCost::ShadowPaging));
        assert_eq!(named("kvm_stat: 9000 kvm_unmap_hva_range/s\n"), is(NamedCost::Unmapping));
        let line = "qemu-system-x86_64 -drive file=a.img,if=virtio -m 1G\n";
        let fio = "READ: bw=131MiB/s (137MB/s), 131MiB/s-131MiB/s\n";
        assert_eq!(named(&format!("{line}{fio}")), is(NamedCost::HostCache));
        assert_eq!(named(&format!("{}{fio}", line.replace("a.img", "a.img,cache=none"))), []);
        assert_eq!(named(line), []);
        for text in [
            "",
            "hello\n",
            "a page of 4 KiB\n",
            "we steal ideas\n",
            "clock_gettime\n",
            "the balloon rises\n",
        ] {
            assert_eq!(named(text), [], "{text}");
        }
    }
}
