//! Every row of the table on made-up systems, good and bad: exact verdicts.

mod arm64;

use std::collections::{BTreeMap, BTreeSet};

use vmtax_analyse::audit::{CheckVerdict, RULES, SeenSetting};
use vmtax_events::Isa;
use vmtax_report::doctor::words;

use crate::root::{MadeRoot, verdicts};

const C: CheckVerdict = CheckVerdict::Costs;
const U: CheckVerdict = CheckVerdict::Unknown;
const O: CheckVerdict = CheckVerdict::Ok;
const N: CheckVerdict = CheckVerdict::NotApplicable;

/// The checks of an ISA.
fn checks_of(isa: Isa) -> BTreeSet<&'static str> {
    let checks = RULES.iter().flat_map(|rule| rule.checks);
    checks.filter(|check| check.isas.have(isa)).map(|check| check.id.name()).collect()
}

/// On the good hosts nothing costs anything, and what is unknown is unknown everywhere.
#[test]
fn good_systems_have_nothing_to_change() {
    let intel = [
        ("avic", N),
        ("avic-inhibit", N),
        ("cgroup-moves", N),
        ("disk-cache", N),
        ("host-pages", U),
        ("hpet", N),
        ("hv-enlightenments", N),
        ("hv-frequencies", N),
        ("kernel", N),
        ("mbec", N),
        ("mediated-pmu", N),
        ("pv-ipi", N),
        ("private-pages", N),
        ("random", N),
        ("rtc-catch-up", N),
        ("slot-waits", N),
        ("snp-firmware", N),
        ("tdx-module", N),
        ("thp-shmem", N),
        ("vgif", N),
        ("vls", N),
        ("vnmi", N),
        ("windows-cpu", N),
    ];
    let amd = [
        ("apicv", N),
        ("cgroup-moves", N),
        ("disk-cache", N),
        ("host-pages", U),
        ("hpet", N),
        ("hv-enlightenments", N),
        ("hv-frequencies", N),
        ("ipiv", N),
        ("kernel", N),
        ("mbec", N),
        ("mediated-pmu", N),
        ("preemption-timer", N),
        ("private-pages", N),
        ("random", N),
        ("rtc-catch-up", N),
        ("shadow-vmcs", N),
        ("slot-waits", N),
        ("snp-firmware", N),
        ("tdx-module", N),
        ("thp-shmem", N),
        ("vpid", N),
        ("windows-cpu", N),
    ];
    for (name, host, others) in
        [("intel", MadeRoot::intel(), &intel[..]), ("amd", MadeRoot::amd(), &amd[..])]
    {
        // The guest polls by itself.
        let host = host.with("/sys/module/kvm/parameters/halt_poll_ns", "0\n");
        let found = verdicts(&host, Some(&MadeRoot::guest()));
        let all: BTreeSet<&str> = checks_of(Isa::Vmx);
        assert_eq!(found.keys().copied().collect::<BTreeSet<_>>(), all, "{name}");
        let mut expected: BTreeMap<&str, CheckVerdict> =
            all.into_iter().map(|id| (id, O)).collect();
        expected.extend(others.iter().copied());
        assert_eq!(found, expected, "{name}");
    }
}

/// The paths in the table begin with one of these words.
fn path(short: &str) -> String {
    let (start, rest) = short.split_once(' ').unwrap_or(("", short));
    let start = match start {
        "thp" => "/sys/kernel/mm/transparent_hugepage/",
        "kvm" => "/sys/module/kvm/parameters/",
        "intel" => "/sys/module/kvm_intel/parameters/",
        "amd" => "/sys/module/kvm_amd/parameters/",
        "cpu" => "/sys/devices/system/cpu/",
        "vm" => "/proc/4711/",
        "count" => "/sys/kernel/debug/kvm/4711-11/",
        _ => "",
    };
    format!("{start}{rest}")
}

/// A system with other files; `-` removes one.
fn changed<'a>(root: MadeRoot, changes: impl IntoIterator<Item = (&'a str, &'a str)>) -> MadeRoot {
    changes.into_iter().fold(root, |root, (file, text)| match (file, text) {
        (_, "-") => root.without(&path(file)),
        ("qemu", options) => root.qemu(&format!("qemu-system-x86_64 {options}")),
        ("vm cmdline", words) => root.qemu(words),
        (_, text) => root.with(&path(file), &format!("{}\n", text.trim_end_matches('\n'))),
    })
}

/// Each case of the table.
#[test]
fn every_check_has_its_verdicts() {
    let mut texts = BTreeMap::new();
    let mut wrong = Vec::new();
    let table = include_str!("verdicts.txt").lines();
    for line in table.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some((name, text)) = line.split_once(" = ") {
            texts.insert(name, text);
            continue;
        }
        let mut rest = line;
        let mut word = || {
            let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
            rest = after.trim_start();
            word
        };
        let (check, system, verdict) = (word(), word(), word());
        let changes: Vec<(&str, String)> = rest
            .split_terminator("; ")
            .map(|change| {
                let (file, text) = change.split_once(": ").unwrap();
                let text = texts.get(text).unwrap_or(&text);
                (file, text.replace(r"\n", "\n").replace(r"\t", "\t"))
            })
            .collect();
        let changes = changes.iter().map(|(file, text)| (*file, text.as_str()));
        let found = match system {
            "intel" => verdicts(&changed(MadeRoot::intel(), changes), None),
            "amd" => verdicts(&changed(MadeRoot::amd(), changes), None),
            "guest" => verdicts(&MadeRoot::intel(), Some(&changed(MadeRoot::guest(), changes))),
            other => panic!("{other}"),
        };
        let expected = match verdict {
            "costs" => C,
            "unknown" => U,
            "ok" => O,
            "n/a" => N,
            other => panic!("{other}"),
        };
        if found.get(check) != Some(&expected) {
            wrong.push(format!("{line}: found {:?}", found.get(check)));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The interrupts of a network card go to CPU 4, where a vCPU is pinned, or to CPU 1.
#[test]
fn device_interrupts_are_part_of_the_map() {
    let host = |counts: &str, goes_to: &str| {
        MadeRoot::intel()
            .with("/proc/uptime", "100.00 700.00\n")
            .with("/sys/kernel/irq/24/actions", "eth0-rx-0\n")
            .with("/sys/kernel/irq/24/per_cpu_count", counts)
            .with("/proc/irq/24/effective_affinity_list", goes_to)
            // Nobody uses this one.
            .with("/sys/kernel/irq/25/actions", "\n")
            .with("/sys/kernel/irq/25/per_cpu_count", "9,9,9,9,90000,9,9,9\n")
            .with("/proc/irq/25/effective_affinity_list", "4\n")
    };
    let often = "0,0,0,0,10000,0,0,0\n";
    for (root, expected) in [
        (host(often, "4\n"), C),
        (host(often, "0-7\n"), C),
        // It went there, and goes elsewhere now.
        (host(often, "1\n"), O),
        (host("0,0,0,0,9999,0,0,0\n", "4\n"), O),
        (host("0,0,0,0,many,0,0,0\n", "4\n"), U),
        (host(often, "4\n").without("/proc/uptime"), U),
        (
            host(often, "4\n")
                .with("/proc/4711/task/4712/status", "Name:\tCPU 0/KVM\nCpus_allowed_list:\t0-7\n"),
            N,
        ),
    ] {
        assert_eq!(verdicts(&root, None)["device-interrupts"], expected);
    }
    let folder = tempfile::tempdir().unwrap();
    host(often, "4\n").write(folder.path());
    let system = vmtax_host::system(folder.path()).unwrap();
    let found = crate::root::findings(&system, None);
    let found = found.into_iter().find(|f| f.check.id.name() == "device-interrupts").unwrap().found;
    assert_eq!(words::found(&found), "devices of the host interrupt the vCPUs on CPUs 4");
    let seen = SeenSetting::Interrupts { devices: "eth0-rx-0".to_owned(), cpu: 4, rate: 100 };
    assert_eq!(found.evidence[1].value, Ok(seen));
}

/// Another VM whose vCPUs are pinned to the same CPUs shares them; one that may run anywhere does not by that.
#[test]
fn cpus_of_several_vms_are_one_map() {
    let other = |cpus: &str| {
        let status = format!("Name:\tCPU 0/KVM\nCpus_allowed_list:\t{cpus}\n");
        MadeRoot::intel()
            .with("/proc/4800/cmdline", "qemu-system-x86_64\0-name\0guest=db,debug-threads=on\0")
            .with("/proc/4800/comm", "qemu-system-x86\n")
            .with("/proc/4800/task/4801/status", &status)
            .link("/proc/4800/fd/9", "/dev/kvm")
            .link("/proc/4800/fd/11", "anon_inode:kvm-vm")
            .link("/proc/4800/fd/12", "anon_inode:kvm-vcpu:0")
    };
    let of_first = |host: &MadeRoot| {
        let folder = tempfile::tempdir().unwrap();
        host.write(folder.path());
        let system = vmtax_host::system(folder.path()).unwrap();
        let found = crate::root::findings(&system, None);
        let is_first = |finding: &vmtax_analyse::audit::AuditFinding| {
            finding.check.id.name() == "vcpu-pinning"
                && finding.subject == vmtax_analyse::audit::AuditSubject::Vm(4711)
        };
        found.into_iter().find(is_first).unwrap().found
    };
    let shared = of_first(&other("4"));
    assert_eq!(shared.verdict, C);
    assert_eq!(words::found(&shared), "CPUs 4 of its vCPUs serve threads of other VMs too: db");
    for cpus in ["0-7", "2", "4-6"] {
        assert_eq!(of_first(&other(cpus)).verdict, O, "{cpus}");
    }
}

#[test]
fn halt_polling_depends_on_who_polls() {
    let off = changed(MadeRoot::intel(), [("kvm halt_poll_ns", "0")]);
    assert_eq!(verdicts(&off, Some(&MadeRoot::guest()))["halt-poll"], O);
    let halts = changed(MadeRoot::guest(), [("cpu cpuidle/current_driver", "none")]);
    assert_eq!(verdicts(&off, Some(&halts))["halt-poll"], U);
}

/// idle=poll wants CPUs for the vCPUs alone.
#[test]
fn idle_poll_depends_on_pinning() {
    let guest = MadeRoot::guest().with("/proc/cmdline", "idle=poll\n");
    for (changes, expected) in [
        (&[][..], O),
        (&[("vm task/4713/status", "Name:\tCPU 1/KVM\nCpus_allowed_list:\t0-7\n")][..], C),
        (&[("vm task", "-")][..], U),
        (&[("/proc/4711", "-")][..], U),
    ] {
        let host = changed(MadeRoot::intel(), changes.iter().copied());
        let found = verdicts(&host, Some(&guest));
        assert_eq!(found["guest-idle-poll"], expected, "{changes:?}");
    }
}

#[test]
fn nothing_can_be_read_where_there_is_nothing() {
    let found = verdicts(&MadeRoot::default(), Some(&MadeRoot::default()));
    let wrong: Vec<_> = found.iter().filter(|(_, verdict)| **verdict != U).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let checks = RULES.iter().flat_map(|rule| rule.checks);
    // There is no VM, and whether there is one is not known.
    let is_asked = |check: &&vmtax_analyse::audit::Check| {
        check.place() != "VM" && check.isas.have(Isa::Unknown)
    };
    let expected = checks.filter(is_asked).count();
    assert_eq!(found.len(), expected);
}

/// A remedy that is wrong for a VM is not offered for it, by whichever check: the table of remedies decides.
#[test]
fn fixes_are_those_of_this_vm() {
    let fixes = |host: &MadeRoot, check: &str| {
        let folder = tempfile::tempdir().unwrap();
        host.write(folder.path());
        let system = vmtax_host::system(folder.path()).unwrap();
        let found = crate::root::findings(&system, None);
        let one = found.into_iter().find(|finding| finding.check.id.name() == check).unwrap();
        {
            let what = words::found(&one.found);
            (one.found.fix, what)
        }
    };
    // guest_memfd memory of an ordinary VM is mapped in small pages under all settings.
    let smaps = "7f00-7f01 rw-p 0 00:00 0\nSize: 1048576 kB\nRss: 1048576 kB\nAnonymous: 1048576 kB\nAnonHugePages: 2048 kB\n";
    let small = MadeRoot::intel().with("/proc/4711/smaps", smaps);
    assert!(fixes(&small, "thp-backing").0.is_some());
    for target in ["anon_inode:[kvm-gmem]", "/[kvm-gmem] (deleted)"] {
        let (fix, what) = fixes(&small.clone().link("/proc/4711/fd/20", target), "thp-backing");
        assert!(fix.is_none() && what.contains("guest_memfd"), "{what}");
    }
    // Another VMM has other options than QEMU's.
    let (fix, what) =
        fixes(&small.qemu("cloud-hypervisor --memory size=1G --cpus boot=2"), "thp-backing");
    assert!(fix.is_none() && what.contains("another VMM"), "{what}");
    // isolcpus= is deprecated, and is not advised.
    let (fix, _) = fixes(&MadeRoot::intel().with(&path("cpu isolated"), "\n"), "isolcpus");
    assert!(words::fix_line(&fix.unwrap()).contains("cpuset.cpus.partition"));
}
