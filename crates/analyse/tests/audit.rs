//! What a run says of a setting: causes, shares, and the most that can be gained, with known numbers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use vmtax_analyse::audit::{
    AuditFinding, AuditInput, AuditSubject, CheckVerdict, FoundSetting, SettingGain, audit,
};
use vmtax_analyse::{Filter, Ledger, LedgerBuilder};
use vmtax_events::setting::{Fact, Kvm, Settings, Unknown, VmProcess, files};
use vmtax_events::{
    Cause, Coverage, Detail, DetailKind, ExitKey, ExitRow, Isa, Level, Losses, Outcome, Reason,
    Recording, Tally, TimeRow, vmx,
};

const SECOND: u64 = 1_000_000_000;

/// An Intel host with everything off that can be.
fn host() -> Settings {
    let mut settings = Settings::default();
    for (path, text) in [
        (
            files::CPUINFO,
            "vendor_id : GenuineIntel\nflags : fpu\nvmx flags : preemption_timer apicv ipi_virt shadow_vmcs\n",
        ),
        (files::THP, "always madvise [never]"),
        (files::APICV, "N"),
        (files::IPIV, "N"),
        (files::PREEMPTION_TIMER, "N"),
        (files::NESTED_INTEL, "Y"),
        (files::SHADOW_VMCS, "N"),
        (files::HALT_POLL, "0"),
        (files::ENABLE_PMU, "Y"),
        (files::NMI_WATCHDOG, "1"),
    ] {
        settings.insert(path, Ok(text.to_owned()));
    }
    settings.insert(files::THP_2M, Err(Unknown::Missing));
    settings
}

fn key(vm: u32, code: u32, detail: Detail, outcome: Outcome) -> ExitKey {
    let reason = Reason { isa: Isa::Vmx, code, flags: 0 };
    ExitKey { vm, vcpu: 0, level: Level::L1, reason, detail, outcome, ancillary_of: None }
}

fn tally(count: u64, each_ns: u64) -> Tally {
    let mut tally = Tally::default();
    (0..count).for_each(|_| tally.add(each_ns));
    tally
}

/// Two VMs for 2 s. VM 10: 1 s halted; 100 faults of 1 ms, 10 IPIs of 2 ms, 1000 halts of 1.01 ms.
/// VM 20: 50 faults of 4 ms, nothing else.
fn ledger(recording: Recording) -> Ledger {
    let mut ledger = LedgerBuilder::new(Filter::default(), 2 * SECOND);
    let icr = Detail::new(DetailKind::ApicWrite, 0x300);
    for (key, tally) in [
        (key(10, vmx::EPT_VIOLATION, Detail::NONE, Outcome::Kernel), tally(100, 1_000_000)),
        (key(10, vmx::APIC_WRITE, icr, Outcome::Kernel), tally(10, 2_000_000)),
        (key(10, vmx::HLT, Detail::NONE, Outcome::Halted), tally(1000, 1_010_000)),
        (key(20, vmx::EPT_VIOLATION, Detail::NONE, Outcome::Kernel), tally(50, 4_000_000)),
    ] {
        ledger.exit(&ExitRow { interval_start_ns: 0, key, tally });
    }
    for (vm, halted_ns, preempted_ns) in [(10, SECOND, 50_000_000), (20, 0, 0)] {
        let wall_ns = 2 * SECOND;
        ledger.time(&TimeRow { vm, wall_ns, halted_ns, preempted_ns, ..TimeRow::default() });
    }
    ledger.finish(recording, Losses::default(), true)
}

fn recording() -> Recording {
    let coverage = Coverage { exits: true, sched: true, wakeup: true, ..Coverage::default() };
    Recording { coverage, ..Recording::default() }
}

fn vm(pid: u32) -> VmProcess {
    let unread = |path: &str| path.to_owned();
    VmProcess {
        pid,
        name: "vm".to_owned(),
        vcpus: 1,
        vhost_net: false,
        guest_memfd: false,
        arguments: Fact::new(unread("cmdline"), Ok(vec!["qemu-system-x86_64".to_owned()])),
        threads: Fact::new(
            unread("task"),
            Ok(vec![vmtax_events::setting::Thread {
                tid: 1,
                name: "CPU 0/KVM".to_owned(),
                allowed: "0-3".to_owned(),
            }]),
        ),
        backing: Fact::new(unread("smaps"), Err(Unknown::Denied)),
        nodes: Fact::new(unread("numa_maps"), Err(Unknown::Denied)),
        counters: Default::default(),
    }
}

/// The findings of a host whose KVM is not known, and of which every process was read.
fn audited(
    host: &Settings,
    vms: &[VmProcess],
    guest: Option<&Settings>,
    ledger: Option<&Ledger>,
) -> Vec<AuditFinding> {
    audit(AuditInput {
        host,
        kvm: &Kvm::default(),
        vms,
        complete: true,
        guest,
        inside: None,
        ledger,
    })
}

fn find<'f>(findings: &'f [AuditFinding], id: &str) -> &'f AuditFinding {
    findings.iter().find(|finding| finding.check.id.name() == id).unwrap()
}

fn gain(findings: &[AuditFinding], id: &str) -> SettingGain {
    find(findings, id).measured.as_ref().unwrap().gain
}

#[test]
fn gains_are_the_time_of_the_exits_that_go() {
    let (host, ledger) = (host(), ledger(recording()));
    let findings = audited(&host, &[], None, Some(&ledger));
    // 4 s of wall time, 1 s of it halted.
    let base_ns = 3 * SECOND;
    let faults = SettingGain::AtMost { count: 150, time_ns: 300_000_000, base_ns };
    assert_eq!(gain(&findings, "thp-enabled"), faults);
    assert_eq!(faults.share(), Some(0.1));
    let ipis = SettingGain::AtMost { count: 10, time_ns: 20_000_000, base_ns };
    assert_eq!((gain(&findings, "ipiv"), gain(&findings, "apicv")), (ipis, ipis));
    // It makes expiries cheaper and removes none.
    assert_eq!(gain(&findings, "preemption-timer"), SettingGain::NoExits);
    assert_eq!(gain(&findings, "nmi-watchdog"), SettingGain::NoExits);
    // Faults: 150 in 2 s, of 3 s.
    let measured = find(&findings, "thp-enabled").measured.clone().unwrap();
    assert_eq!(measured.vm, None);
    let [cause] = measured.causes[..] else { panic!("{measured:?}") };
    assert_eq!((cause.cause, cause.count), (Cause::MemoryFault, 150));
    assert_eq!(
        (cause.per_second, cause.time_ns, cause.share),
        (Some(75.0), Some(300_000_000), Some(0.1))
    );
}

/// Halting is no cost: of the 1.01 s of halts 1 s was halted.
#[test]
fn halted_time_is_no_gain() {
    let (host, ledger) = (host(), ledger(recording()));
    let mut guest = Settings::default();
    for (path, text) in [
        (files::CMDLINE, "quiet"),
        (files::IDLE_DRIVER, "none"),
        (files::CPUINFO, "flags : hypervisor"),
    ] {
        guest.insert(path, Ok(text.to_owned()));
    }
    let findings = audited(&host, &[], Some(&guest), Some(&ledger));
    let measured = find(&findings, "guest-haltpoll").measured.clone().unwrap();
    let [idle] = &measured.causes[..] else { panic!("{measured:?}") };
    assert_eq!((idle.count, idle.time_ns), (1000, Some(10_000_000)));
    // Polling in the guest trades each halt for an interrupt of the host.
    assert_eq!(measured.gain, SettingGain::NoExits);
}

#[test]
fn the_most_expensive_comes_first() {
    let (host, ledger) = (host(), ledger(recording()));
    let order = |ledger| -> Vec<&str> {
        let findings = audited(&host, &[], None, ledger);
        let costs = findings.iter().filter(|finding| finding.found.verdict == CheckVerdict::Costs);
        costs.map(|finding| finding.check.id.name()).collect()
    };
    assert_eq!(order(None), ["thp-enabled", "preemption-timer", "apicv", "ipiv", "nmi-watchdog"]);
    // The PMU was not used in the run, which makes it a cost. Ties are in the table's order.
    let expected =
        ["thp-enabled", "apicv", "ipiv", "enable-pmu", "preemption-timer", "nmi-watchdog"];
    assert_eq!(order(Some(&ledger)), expected);
}

#[test]
fn a_vm_of_the_run_is_measured_alone() {
    let (host, ledger) = (host(), ledger(recording()));
    for (pid, of, base_ns, faults) in [
        (10, Some(10), SECOND, 100_000_000),
        (20, Some(20), 2 * SECOND, 200_000_000),
        (30, None, 3 * SECOND, 300_000_000),
    ] {
        let vms = [vm(pid)];
        let findings = audited(&host, &vms, None, Some(&ledger));
        let measured = find(&findings, "thp-enabled").measured.clone().unwrap();
        assert_eq!(measured.vm, of);
        let SettingGain::AtMost { time_ns, base_ns: base, .. } = measured.gain else {
            panic!("{measured:?}")
        };
        assert_eq!((time_ns, base), (faults, base_ns));
        let pinning = find(&findings, "vcpu-pinning");
        assert_eq!(
            (pinning.subject, pinning.found.verdict),
            (AuditSubject::Vm(pid), CheckVerdict::Costs)
        );
        let preempted = if pid == 20 { 0 } else { 50_000_000 };
        assert_eq!(
            pinning.measured.as_ref().unwrap().gain,
            SettingGain::Preempted { time_ns: preempted, base_ns }
        );
    }
}

/// Times of an emulator, or none at all: counts and no shares.
#[test]
fn without_times_that_mean_anything_there_are_counts_alone() {
    let host = host();
    let emulated = Recording { emulated: Some("Bochs".to_owned()), ..recording() };
    let mut bare = LedgerBuilder::new(Filter::default(), SECOND);
    let mut counted = Tally::default();
    counted.add_untimed(150);
    let key = key(1, vmx::EPT_VIOLATION, Detail::NONE, Outcome::Unknown);
    bare.exit(&ExitRow { interval_start_ns: 0, key, tally: counted });
    let bare = bare.finish(Recording::default(), Losses::default(), true);
    for ledger in [ledger(emulated), bare] {
        let findings = audited(&host, &[], None, Some(&ledger));
        let measured = find(&findings, "thp-enabled").measured.clone().unwrap();
        assert_eq!(
            (measured.gain, measured.gain.share()),
            (SettingGain::Counts { count: 150 }, None)
        );
        assert_eq!((measured.causes[0].share, measured.causes[0].per_second), (None, None));
    }
    // Without sched_switch the preempted time of vCPUs is unknown.
    let blind = Recording {
        coverage: Coverage { exits: true, ..Coverage::default() },
        ..Recording::default()
    };
    let (ledger, vms) = (ledger(blind), [vm(10)]);
    let findings = audited(&host, &vms, None, Some(&ledger));
    assert_eq!(gain(&findings, "vcpu-pinning"), SettingGain::Unknown);
}

/// With KVM's polling off, the run's halts tell whether it would pay.
#[test]
fn short_halts_advise_polling() {
    let host = host();
    for (each_ns, verdict) in [(20_000, CheckVerdict::Costs), (5_000_000, CheckVerdict::Ok)] {
        let mut builder = LedgerBuilder::new(Filter::default(), SECOND);
        let key = key(1, vmx::HLT, Detail::NONE, Outcome::Halted);
        builder.exit(&ExitRow { interval_start_ns: 0, key, tally: tally(100, each_ns) });
        let ledger = builder.finish(recording(), Losses::default(), true);
        let findings = audited(&host, &[], None, Some(&ledger));
        assert_eq!(find(&findings, "halt-poll").found.verdict, verdict, "{each_ns}");
    }
}

/// Exits of L2 in the run say that some guest nests.
#[test]
fn nesting_in_the_run_makes_shadowing_matter() {
    let host = host();
    let verdict = |level| {
        let mut builder = LedgerBuilder::new(Filter::default(), SECOND);
        let key = ExitKey { level, ..key(1, vmx::CPUID, Detail::NONE, Outcome::Kernel) };
        builder.exit(&ExitRow { interval_start_ns: 0, key, tally: tally(1, 1000) });
        let coverage = Coverage { nested: true, ..Coverage::default() };
        let ledger =
            builder.finish(Recording { coverage, ..Recording::default() }, Losses::default(), true);
        let findings = audited(&host, &[], None, Some(&ledger));
        find(&findings, "shadow-vmcs").found.verdict
    };
    assert_eq!(
        (verdict(Level::L2), verdict(Level::L1)),
        (CheckVerdict::Costs, CheckVerdict::Unknown)
    );
}

/// kvm_intel without its parameter `tdx` was built for a kernel that runs no TDs.
#[test]
fn kernels_without_tdx_support_are_named() {
    for (value, verdict, what) in [
        (Err(Unknown::Missing), CheckVerdict::NotApplicable, FoundSetting::KernelWithoutTdx),
        (Ok("N".to_owned()), CheckVerdict::NotApplicable, FoundSetting::NoTds),
        (Err(Unknown::Denied), CheckVerdict::Unknown, FoundSetting::Unread(Some(Unknown::Denied))),
    ] {
        let mut host = host();
        host.insert(files::TDX, value);
        let findings = audited(&host, &[], None, None);
        let found = &find(&findings, "tdx-module").found;
        assert_eq!((found.verdict, &found.what), (verdict, &what));
    }
}
