//! What a profile's functions show: of the guest, polling, a bounce buffer, emulated devices; of the host, what it does for the guest
//! beside running it.

use vmtax_events::observed::TimedFunction;
use vmtax_events::profile::Weight;
use vmtax_events::{Profile, ProfileOrigin};

use super::super::certainty::Certainty;
use super::super::finding::{Advice, Evidence, Finding, FoundKind};
use super::super::subject::Subject;
use crate::Ledger;
use crate::remedy::{Context, RemedyId};

/// Functions that show something.
struct Sign {
    place: ProfileOrigin,
    found: FoundKind,
    certainty: Certainty,
    /// The part of the samples from which on it does.
    least: f64,
    /// Names, or their beginnings where they end in `*`.
    functions: &'static [&'static str],
    remedies: &'static [RemedyId],
    /// What must hold for the remedies, beside their own conditions.
    condition: Option<&'static str>,
    /// Time in what these functions call says nothing.
    own: bool,
    /// Only where the stack has no other functions.
    alone: bool,
    /// The first function above them that is none of theirs is one of these, where there are any.
    of: &'static [&'static str],
}

impl Sign {
    const fn new(
        place: ProfileOrigin,
        found: FoundKind,
        least: f64,
        functions: &'static [&'static str],
    ) -> Sign {
        let certainty = Certainty::Likely;
        Sign {
            place,
            found,
            certainty,
            least,
            functions,
            remedies: &[],
            condition: None,
            own: false,
            alone: false,
            of: &[],
        }
    }

    const fn of(mut self, callers: &'static [&'static str]) -> Sign {
        self.of = callers;
        self
    }

    const fn certain(mut self) -> Sign {
        self.certainty = Certainty::Certain;
        self
    }

    const fn remedies(mut self, remedies: &'static [RemedyId]) -> Sign {
        self.remedies = remedies;
        self
    }

    const fn own(mut self) -> Sign {
        self.own = true;
        self
    }

    const fn alone(mut self) -> Sign {
        self.alone = true;
        self
    }

    const fn only_if(mut self, condition: &'static str) -> Sign {
        self.condition = Some(condition);
        self
    }

    fn fits(&self, function: &str) -> bool {
        is_in(self.functions, function)
    }

    /// Whether a stack shows it.
    fn shows(&self, stack: &str) -> bool {
        let mut functions = stack.split(Profile::BETWEEN);
        if !self.of.is_empty() {
            let mut above = functions.rev().skip_while(|function| !self.fits(function)).peekable();
            return above.peek().is_some()
                && above
                    .find(|function| !self.fits(function))
                    .is_some_and(|caller| is_in(self.of, caller));
        }
        if self.alone {
            functions.all(|function| self.fits(function))
        } else if self.own {
            functions.next_back().is_some_and(|function| self.fits(function))
        } else {
            functions.any(|function| self.fits(function))
        }
    }
}

fn is_in(names: &[&str], function: &str) -> bool {
    // A compiler marks parts and copies: compact_zone.isra.0.
    let function = function.split('.').next().unwrap_or_default();
    names.iter().any(|known| match known.strip_suffix('*') {
        Some(start) => function.starts_with(start),
        None => function == *known,
    })
}

/// Waiting for a spin lock or a lock of readers and writers. Linux kernel/locking.
const LOCKS: &[&str] = &[
    "queued_write_lock_slowpath",
    "queued_read_lock_slowpath",
    "native_queued_spin_lock_slowpath",
    "__pv_queued_spin_lock_slowpath",
    "pv_queued_spin_lock_slowpath",
    // Linux arch/x86/kernel/kvm.c and arch/x86/xen/spinlock.c: a vCPU that waits for a lock halts there.
    "kvm_wait",
    "xen_qlock_wait",
    "queued_spin_lock_slowpath",
    "_raw_write_lock*",
    "_raw_read_lock*",
    "_raw_spin_lock*",
    "__lock_text_start",
];

/// Every sign.
const SIGNS: &[Sign] = &[
    // Linux kernel/sched/idle.c, drivers/cpuidle.
    Sign::new(
        ProfileOrigin::Guest,
        FoundKind::GuestPolls,
        0.3,
        &["cpu_idle_poll", "poll_idle", "haltpoll_enter_idle", "default_enter_idle"],
    )
    .remedies(&[RemedyId::NoIdlePoll]),
    // Linux kernel/dma/swiotlb.c.
    Sign::new(ProfileOrigin::Guest, FoundKind::BounceBuffer, 0.03, &["swiotlb_*"])
        .remedies(&[RemedyId::NoForcedBounce, RemedyId::BounceSize]),
    // Linux arch/x86/kernel/hpet.c, drivers/clocksource/acpi_pm.c, i8253.c.
    Sign::new(
        ProfileOrigin::Guest,
        FoundKind::Exits(Subject::ClockReads),
        0.02,
        &["read_hpet", "acpi_pm_read", "acpi_pm_read_verified", "i8253_read", "pit_read"],
    )
    .certain()
    .remedies(&[RemedyId::GuestClocksource]),
    // Linux drivers/net/ethernet/intel/e1000, e1000e, realtek/8139cp.c, 8139too.c: a register access in each of them is an exit.
    Sign::new(
        ProfileOrigin::Guest,
        FoundKind::Exits(Subject::DeviceRegisters),
        0.05,
        &["e1000_*", "e1000e_*", "rtl8139_*", "cp_start_xmit", "cp_rx_poll"],
    )
    .remedies(&[RemedyId::ParavirtualDevice])
    .only_if("the network card is the VMM's, and not passed through"),
    // Linux drivers/ata/libata-sff.c.
    Sign::new(ProfileOrigin::Guest, FoundKind::Exits(Subject::IdeDisk), 0.05, &["ata_sff_*", "ata_bmdma_*"])
        .remedies(&[RemedyId::VirtioDisk]),
    // Linux drivers/tty/serial/8250.
    Sign::new(
        ProfileOrigin::Guest,
        FoundKind::Exits(Subject::SerialConsole),
        0.05,
        &["io_serial_in", "io_serial_out", "serial8250_*"],
    )
    .remedies(&[RemedyId::SerialConsole]),
    // Linux kernel/smp.c: a vCPU waits there until others ran a function, as for flushes of their TLBs; one that has no processor cannot.
    // kvm@vger, 2019-07-18, "KVM: Boost vCPUs that are delivering interrupts" (Linux commit d73eb57b80b9).
    Sign::new(
        ProfileOrigin::Guest,
        FoundKind::IpiWaits,
        0.20,
        &[
            "smp_call_function_many*",
            "smp_call_function_single",
            "csd_lock_wait",
            "__csd_lock_wait",
            // arch/x86/kernel/apic and kernel/kvm.c: sending them, where each is an exit.
            "__x2apic_send_IPI*",
            "x2apic_send_IPI*",
            "native_x2apic_icr_write",
            "default_send_IPI*",
            "kvm_send_ipi*",
            "__send_ipi_mask",
        ],
    )
    .own(),
    // Linux mm/memory.c, mm/migrate.c: what is moved is flushed from the TLBs of all vCPUs by IPIs (linux-mm, 2 March 2015, Message-ID
    // 20150302010413.GP4251@dastard).
    Sign::new(
        ProfileOrigin::Guest,
        FoundKind::GuestNuma,
        0.05,
        &["migrate_misplaced_*"],
    ),
    // Linux arch/x86/kvm/mmu: what has shadow pages (FNAME(page_fault), kvm_mmu_sync_roots) takes mmu_lock for writing, a spinlock before 5.13.
    Sign::new(
        ProfileOrigin::Host,
        FoundKind::MmuLock,
        0.05,
        LOCKS,
    )
    .of(&[
        "kvm_mmu_*",
        "kvm_tdp_*",
        "tdp_page_fault",
        "direct_page_fault",
        "ept_page_fault",
        "paging64_*",
        "paging32_*",
        "nonpaging_page_fault",
        "make_mmu_pages_available",
        "mmu_sync_children",
    ]),
    Sign::new(ProfileOrigin::Host, FoundKind::LockWaits, 0.10, LOCKS).alone(),
    Sign::new(ProfileOrigin::Guest, FoundKind::LockWaits, 0.10, LOCKS).alone(),
    // Linux drivers/virtio/virtio_pci_common.c, virtio_mmio.c: a write to the device's doorbell.
    Sign::new(
        ProfileOrigin::Guest,
        FoundKind::Exits(Subject::QueueNotifications),
        0.05,
        &["vp_notify", "vp_notify_with_data", "vm_notify", "vm_notify_with_data"],
    ),
    // QEMU accel/tcg: what runs, finds and makes translated blocks; names of its vCPU threads.
    Sign::new(
        ProfileOrigin::Host,
        FoundKind::NoKvm,
        0.05,
        &["cpu_exec_loop", "cpu_tb_exec", "tb_lookup", "tb_htable_lookup", "helper_lookup_tb_ptr", "cpu_io_recompile", "tcg_*", "tlb_set_page_full", "TCG"],
    ),
    // QEMU migration/ram.c, util/bufferiszero.c: the migration's thread, and not its channels'.
    Sign::new(ProfileOrigin::Host, FoundKind::MigrationScan, 0.10, &["buffer_zero_*", "buffer_is_zero*"])
        .of(&["live_migration", "ram_find_and_save_block", "ram_save_iterate", "save_zero_page*"]),
    // QEMU hw/i386/intel_iommu.c, hw/i386/amd_iommu.c.
    Sign::new(ProfileOrigin::Host, FoundKind::EmulatedIommu, 0.05, &["vtd_*", "amdvi_*"]),
    // QEMU hw/vfio/region.c; Linux drivers/vfio/pci/vfio_pci_rdwr.c.
    Sign::new(
        ProfileOrigin::Host,
        FoundKind::PassedThroughRegisters,
        0.05,
        &["vfio_region_write", "vfio_region_read", "vfio_pci_bar_rw"],
    ),
    // Linux mm/memory.c, mm/migrate.c: a host that moves pages to where they are used takes them from the guest meanwhile.
    Sign::new(
        ProfileOrigin::Host,
        FoundKind::SlowFunction(TimedFunction::NumaBalancing),
        0.05,
        &["do_numa_page", "do_huge_pmd_numa_page", "migrate_misplaced_*", "task_numa_work"],
    )
    .remedies(&[RemedyId::NoNumaBalancing]),
    // Linux arch/x86/kvm/mmu/paging_tmpl.h and mmu.c: what walks or follows page tables of a guest. Nested paging without the TDP MMU has the
    // other functions of shadow pages too (kvm_mmu_get_page, pte_list_*).
    Sign::new(
        ProfileOrigin::Host,
        FoundKind::Exits(Subject::ShadowPaging),
        0.01,
        &[
            "paging64_page_fault",
            "paging64_fetch",
            "paging32_page_fault",
            "paging32_fetch",
            "kvm_mmu_pte_write",
            "kvm_mmu_track_write",
            "mmu_sync_children",
        ],
    )
    .remedies(&[RemedyId::Ept, RemedyId::Npt])
    .only_if("the processor has nested paging, and the parameter is off; not if the guest runs guests of its own"),
    // Linux mm/compaction.c.
    Sign::new(
        ProfileOrigin::Host,
        FoundKind::Compaction,
        0.05,
        &[
            "compact_zone",
            "compaction_alloc",
            "isolate_freepages*",
            "isolate_migratepages*",
            "fast_isolate_freepages",
            "try_to_compact_pages",
        ],
    )
    .remedies(&[RemedyId::ThpDefer, RemedyId::HugetlbMemory]),
    // Linux mm/memory.c, mm/page_io.c, mm/swap_state.c.
    Sign::new(
        ProfileOrigin::Host,
        FoundKind::FaultsWait,
        0.03,
        &["do_swap_page", "swap_readpage", "swap_read_folio", "swapin_readahead", "swap_cluster_readahead"],
    )
    .remedies(&[RemedyId::ResidentMemory]),
    // Linux mm/ksm.c.
    Sign::new(
        ProfileOrigin::Host,
        FoundKind::PageMerging,
        0.05,
        &["ksm_do_scan", "ksm_scan_thread", "cmp_and_merge_page", "stable_tree_search", "unstable_tree_search_insert"],
    )
    .remedies(&[RemedyId::KsmOff]),
    // Linux arch/x86/kvm/cpuid.c, svm/svm.c: for each CPUID of a guest. KVM's emulator calls kvm_cpuid too, for few instructions.
    Sign::new(
        ProfileOrigin::Host,
        FoundKind::Exits(Subject::Cpuid),
        0.02,
        &["kvm_emulate_cpuid", "kvm_cpuid", "cpuid_interception"],
    ),
    // Linux virt/kvm/kvm_main.c.
    Sign::new(
        ProfileOrigin::Host,
        FoundKind::Exits(Subject::Spinning),
        0.05,
        &["kvm_vcpu_on_spin", "kvm_vcpu_yield_to", "yield_to"],
    )
    .remedies(&[RemedyId::SpinPinning]),
    // Linux Documentation/admin-guide/hw-vuln/vmscape.rst: a barrier before each exit to user space. arch/x86/include/asm/entry-common.h.
    Sign::new(
        ProfileOrigin::Host,
        FoundKind::VmscapeBarrier,
        0.10,
        &["arch_exit_to_user_mode_prepare", "entry_ibpb", "write_ibpb"],
    )
    .remedies(&[RemedyId::Ioeventfd, RemedyId::Vhost]),
    // Linux virt/kvm/kvm_main.c: the loop of halt polling, and what it calls. Below kvm_vcpu_halt a vCPU sleeps, too.
    Sign::new(
        ProfileOrigin::Host,
        FoundKind::HostPolls,
        0.20,
        &["kvm_vcpu_check_block", "kvm_vcpu_halt", "kvm_vcpu_block", "kvm_arch_vcpu_runnable", "kvm_vcpu_has_events"],
    )
    .own()
    .remedies(&[RemedyId::NoHaltPoll]),
];

/// Functions that are named.
const NAMED: usize = 3;

/// Linux virt/kvm/kvm_main.c: `kvm_vcpu_check_block` is called once for a halt, and without end while KVM polls. So much of its own is the loop,
/// whose other functions (of the APIC, of the vendor's module) other code calls too.
const LOOPS: (&str, f64) = ("kvm_vcpu_check_block", 0.03);

fn polls(profile: &Profile) -> bool {
    let own = profile.functions().get(LOOPS.0).map_or(0, |weight| weight.own);
    own as f64 >= LOOPS.1 * profile.total().max(1) as f64
}

/// The part of a profile's samples whose stack shows it.
fn part_of(profile: &Profile, sign: &Sign) -> f64 {
    let all = profile.total().max(1) as f64;
    let with = profile.stacks.iter().filter(|(stack, _)| sign.shows(stack));
    with.map(|(_, weight)| *weight).fold(0, u64::saturating_add) as f64 / all
}

/// The functions that fit, with their own shares, largest first; where they only call others, with what these take.
fn most(profile: &Profile, fits: impl Fn(&str) -> bool) -> Vec<(String, f64)> {
    let functions = profile.functions();
    let fitting = || functions.iter().filter(|(name, _)| fits(name));
    let is_own = fitting().any(|(_, weight)| weight.own > 0);
    let weight = |w: &Weight| if is_own { w.own } else { w.total };
    let mut named: Vec<(&str, u64)> = fitting().map(|(name, w)| (*name, weight(w))).collect();
    named.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
    let all = profile.total().max(1) as f64;
    let share = |(name, weight): &(&str, u64)| ((*name).to_owned(), *weight as f64 / all);
    named.iter().take(NAMED).map(share).collect()
}

/// What the profiles show.
pub(in crate::explain) fn of_profiles(ledger: &Ledger, context: &Context) -> Vec<Finding> {
    let mut all: Vec<Finding> =
        SIGNS.iter().filter_map(|sign| finding(sign, ledger, context)).collect();
    if all.iter().any(|one| one.found == FoundKind::GuestNuma) {
        of_moved_pages(&mut all, ledger);
    }
    all
}

/// Pages that move are flushed by IPIs, which are not for want of a processor: where stacks show that, these do not count. Where they do not (functions
/// alone, the screen of a call graph) the moves come first.
fn of_moved_pages(all: &mut Vec<Finding>, ledger: &Ledger) {
    let sign = |found: FoundKind| SIGNS.iter().find(|sign| sign.found == found);
    let (Some(ipis), Some(moves)) = (sign(FoundKind::IpiWaits), sign(FoundKind::GuestNuma)) else {
        return;
    };
    let Some(profile) = ledger.profiles.get(&ProfileOrigin::Guest) else { return };
    let of_ipis = || profile.stacks.iter().filter(|(stack, _)| ipis.shows(stack));
    if of_ipis().any(|(stack, _)| stack.contains(Profile::BETWEEN)) {
        let others = of_ipis().filter(|(stack, _)| !moves.shows(stack)).map(|(_, weight)| *weight);
        let part = others.fold(0, u64::saturating_add) as f64 / profile.total().max(1) as f64;
        all.retain(|one| one.found != FoundKind::IpiWaits || part >= ipis.least);
        if let Some(waits) = all.iter_mut().find(|one| one.found == FoundKind::IpiWaits) {
            waits.weight = part;
        }
        return;
    }
    let of = |all: &[Finding], found| {
        all.iter().find(|one| one.found == found).map_or(0.0, |one: &Finding| one.weight)
    };
    let (waits, moved) = (of(all, FoundKind::IpiWaits), of(all, FoundKind::GuestNuma));
    if moved >= MOVES
        && waits > moved
        && let Some(numa) = all.iter_mut().find(|one| one.found == FoundKind::GuestNuma)
    {
        numa.weight = waits * 1.01;
    }
}

/// The part of the samples from which on pages that move are what a profile shows first.
const MOVES: f64 = 0.10;

fn finding(sign: &Sign, ledger: &Ledger, context: &Context) -> Option<Finding> {
    let profile = ledger.profiles.get(&sign.place)?;
    let fits = |name: &str| sign.fits(name);
    let share = part_of(profile, sign);
    let is_shown = share >= sign.least || sign.found == FoundKind::HostPolls && polls(profile);
    if !is_shown {
        return None;
    }
    let enters = |module: &str| {
        profile.functions().keys().any(|name| name.trim_start_matches('_').starts_with(module))
    };
    // Beside KVM's guests one of TCG is another VM.
    if sign.found == FoundKind::NoKvm && (enters("vmx_") || enters("svm_")) {
        return None;
    }
    let mut finding = Finding::new(sign.found.clone(), sign.certainty);
    finding.evidence.push(Evidence::Samples(sign.place, share, most(profile, fits)));
    // What the locks are for is said by the others.
    finding.weight = if sign.found == FoundKind::LockWaits { 0.0 } else { share };
    // idle=poll shows by this function alone.
    let is_forced = profile.functions().contains_key("cpu_idle_poll");
    let helps = |remedy: &RemedyId| match remedy {
        // A guest that no processor's virtualization runs has no nested paging: PVM.
        RemedyId::Ept => enters("vmx_"),
        RemedyId::Npt => enters("svm_"),
        _ => sign.found != FoundKind::GuestPolls || is_forced,
    };
    let remedies: Vec<RemedyId> = sign.remedies.iter().copied().filter(helps).collect();
    finding.advise(&remedies, context);
    if let Some(condition) = sign.condition {
        let and = |advice: Advice| Advice { condition: Some(condition), ..advice };
        finding.remedies = finding.remedies.drain(..).map(and).collect();
    }
    Some(finding)
}

#[cfg(test)]
mod tests {
    use vmtax_events::{Losses, Recording};

    use super::*;
    use crate::{Filter, LedgerBuilder};

    fn found(stacks: &[(&str, u64)]) -> Vec<&'static str> {
        let mut profile = Profile::new(ProfileOrigin::Host);
        for (stack, weight) in stacks {
            profile.stacks.insert(stack.replace(';', &Profile::BETWEEN.to_string()), *weight);
        }
        let mut ledger = LedgerBuilder::new(Filter::default(), 1);
        ledger.profile(profile);
        let ledger = ledger.finish(Recording::default(), Losses::default(), true);
        let context = super::super::super::kind::context(&ledger);
        of_profiles(&ledger, &context)
            .iter()
            .map(|finding| match finding.found {
                FoundKind::Exits(subject) => subject.name(),
                ref other => other.id(),
            })
            .collect()
    }

    #[test]
    fn functions_of_a_host_show_what_they_are_for_and_no_more() {
        for (stacks, expected) in [
            (&[("vmx_vcpu_run", 90), ("paging64_page_fault", 10)][..], &["shadow-paging"][..]),
            // Whose lock it is, a function alone does not tell; below another one it does.
            (&[("vmx_vcpu_run", 50), ("native_queued_spin_lock_slowpath", 50)], &["lock-waits"]),
            (&[("vmx_vcpu_run", 50), ("futex_wake;_raw_spin_lock", 50)], &[]),
            (&[("cpu_exec_loop;cpu_tb_exec", 50), ("qemu_poll_ns", 50)], &["no-kvm"]),
            (&[("cpu_exec_loop;cpu_tb_exec", 50), ("__vmx_vcpu_run", 50)], &[]),
            (&[("tcg_flush_jmp_cache", 50), ("arm_feature", 50)], &["no-kvm"]),
            // No processor's virtualization: PVM. With it the remedy is one of its vendor.
            (&[("kvm_cpu_exec", 50), ("paging64_page_fault", 50)], &["shadow-paging"]),
            (&[("live_migration;buffer_zero_avx2", 50), ("vmx_vcpu_run", 50)], &["migration-scan"]),
            // The channels look for zeros: zero-page-detection=multifd.
            (&[("multifdsend;buffer_zero_avx2", 50), ("vmx_vcpu_run", 50)], &[]),
            // Nested paging without the TDP MMU.
            (&[("vmx_vcpu_run", 50), ("kvm_mmu_get_page", 30), ("pte_list_add", 20)], &[]),
            (&[("vmx_vcpu_run", 50), ("kvm_vcpu_halt;kvm_vcpu_check_block", 50)], &["host-polls"]),
            // A profile without graphs (ntop/ntopng issue 6253): the loop's own functions are a part of it.
            (
                &[
                    ("kvm_lapic_find_highest_irr", 60),
                    ("__apic_update_ppr", 26),
                    ("kvm_arch_vcpu_runnable", 8),
                    ("kvm_vcpu_check_block", 6),
                ],
                &["host-polls"],
            ),
            (
                &[("vmx_vmexit", 90), ("kvm_arch_vcpu_runnable", 8), ("kvm_vcpu_check_block", 2)],
                &[],
            ),
            // It sleeps.
            (&[("vmx_vcpu_run", 50), ("kvm_vcpu_halt;schedule", 50)], &[]),
            (&[("vmx_vcpu_run", 50), ("do_swap_page;io_schedule", 50)], &["memory-faults"]),
            (&[("vmx_vcpu_run", 50), ("do_numa_page;migrate_pages", 50)], &["numa-balancing"]),
            (
                &[("kvm_cpu_exec;vtd_mem_write;ioctl", 50), ("vmx_vcpu_run", 50)],
                &["emulated-iommu"],
            ),
            (
                &[
                    ("vmx_vcpu_run", 50),
                    ("kvm_mmu_sync_roots;_raw_write_lock;queued_write_lock_slowpath", 50),
                ],
                &["mmu-lock"],
            ),
            // Another lock, below the same fault.
            (
                &[
                    ("vmx_vcpu_run", 50),
                    (
                        "kvm_mmu_page_fault;alloc_pages;_raw_spin_lock;native_queued_spin_lock_slowpath",
                        50,
                    ),
                ],
                &[],
            ),
            (
                &[("vmx_vcpu_run", 50), ("compact_zone.isra.0;isolate_freepages", 50)],
                &["compaction"],
            ),
        ] {
            assert_eq!(found(stacks), expected, "{stacks:?}");
        }
    }
}
