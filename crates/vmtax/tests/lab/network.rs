//! `vmtax lab network`: QEMU on the emulated host, and what a request, a KiB and a sleep of its VM take.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use crate::run::{json, refused};

/// Values of the table by workload, VM and column.
struct Traffic(BTreeMap<(String, String), Value>);

impl Traffic {
    fn of(document: &Value) -> Traffic {
        let rows = document["traffic"].as_array().unwrap();
        let name = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
        Traffic(
            rows.iter()
                .map(|row| ((name(row, "workload"), name(row, "vm")), row.clone()))
                .collect(),
        )
    }

    fn each(&self, workload: &str, vm: &str, column: &str) -> f64 {
        let key = (workload.to_owned(), vm.to_owned());
        let row = self.0.get(&key).unwrap_or_else(|| panic!("no row {key:?}"));
        row[column].as_f64().unwrap_or_else(|| panic!("{key:?} has no {column}: {row}"))
    }
}

#[test]
fn unknown_names_are_refused_before_the_host_boots() {
    for (words, code, said) in [
        (vec!["--vm", "plain+nothing"], 2, "+nothing"),
        (vec!["--vm", "snp"], 2, "starts with `plain`"),
        (
            vec!["--workload", "ping"],
            2,
            "the workloads are request, paced, receive, send, timer, short-timer, read, write",
        ),
        (vec!["--vm", "plain+vhost+nested"], 2, "put it after +nested"),
        (vec!["--client", "remote"], 2, "the places are host, peer"),
        (vec!["--client", "peer", "--workload", "request,timer"], 2, "timer has no client"),
        (vec!["--show", "/nonexistent"], 3, "/nonexistent"),
        (vec!["--kernel", "/nonexistent/bzImage"], 3, "/nonexistent/bzImage"),
    ] {
        let all: Vec<&str> = ["lab", "network"].into_iter().chain(words).collect();
        let (found, message) = refused(&all);
        assert_eq!(found, code, "{message}");
        assert!(message.contains(said), "{message}");
    }
    let memory =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../captures/lab-memory/amd-7.3");
    let (code, message) = refused(&["lab", "network", "--show", memory.to_str().unwrap()]);
    assert_eq!(code, 2, "{message}");
    assert!(message.contains("is not a run of `vmtax lab network`"), "{message}");
}

fn capture(name: &str) -> String {
    let captures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../captures/lab-network");
    captures.join(name).to_str().unwrap().to_owned()
}

/// The kept run: vhost takes QEMU's main loop out of each request, and the exits stay the same.
#[test]
fn vhost_moves_notifications_out_of_the_vmm() {
    vhost(&Traffic::of(&json(&["lab", "network", "--show", &capture("vhost")])));
}

/// The kept run: a VM that polls while it is idle takes no HLT exit for a sleep, and the timer of one without TSC deadline and x2APIC is
/// a register in memory, written once for each MSR write of the plain VM.
#[test]
fn polling_removes_halts_and_timers_can_be_memory() {
    let run = capture("polling");
    let traffic = Traffic::of(&json(&["lab", "network", "--show", &run]));
    let timer = |vm: &str, column: &str| traffic.each("timer", vm, column);
    assert!((1.1..1.4).contains(&timer("plain", "idle")));
    assert_eq!(timer("plain+poll", "idle"), 0.0);
    assert!(timer("plain+poll", "exits") < 0.96 * timer("plain", "exits"));
    // A timer that expires while the vCPU polls interrupts the guest.
    assert!(timer("plain", "host_interrupt") < 0.05);
    assert!((1.2..1.6).contains(&timer("plain+poll", "host_interrupt")));
    let writes = |event: &str, vm: &str, register: u64| -> u64 {
        let report = json(&[
            "report",
            &run,
            "--vm",
            &format!("timer {vm}"),
            "--event",
            event,
            "--by",
            "detail",
        ]);
        let rows = report["tables"][0]["rows"].as_array().unwrap().clone();
        let of = |row: &&Value| row["detail"]["value"].as_u64() == Some(register);
        rows.iter().filter(of).map(|row| row["count"].as_u64().unwrap()).sum()
    };
    let (tmict, tsc_deadline) = (0xfee0_0380, 0x6e0);
    let in_memory = writes("mmio", "plain-tsc-deadline-x2apic", tmict);
    let by_msr = writes("msr", "plain", tsc_deadline);
    assert!(in_memory > 200 && by_msr > 200, "{in_memory} {by_msr}");
    assert!(in_memory.abs_diff(by_msr) < by_msr / 20, "{in_memory} {by_msr}");
    assert_eq!(writes("msr", "plain-tsc-deadline-x2apic", tsc_deadline), 0);
}

/// The kept runs: with two vCPUs each request takes an IPI. The idle driver haltpoll with another governor polls nothing, which is why such a VM
/// is refused; one that polls takes no HLT.
#[test]
fn two_vcpus_take_ipis_and_a_driver_without_governor_halts() {
    let show = |name: &str| Traffic::of(&json(&["lab", "network", "--show", &capture(name)]));
    let smp = show("smp");
    for workload in ["request", "paced"] {
        assert_eq!(smp.each(workload, "plain", "ipi"), 0.0, "{workload}");
        assert!((0.95..1.2).contains(&smp.each(workload, "plain+smp", "ipi")), "{workload}");
        let halts = ["plain+smp", "plain"].map(|vm| smp.each(workload, vm, "idle"));
        assert!(halts[0] > halts[1] + 0.9, "{workload}: {halts:?}");
    }
    assert!(smp.each("receive", "plain", "exits") < 0.1);
    let short = show("short");
    let halts = |vm: &str| short.each("short-timer", vm, "idle");
    assert_eq!((halts("plain"), halts("plain+haltpoll"), halts("plain+poll")), (1.0, 1.0, 0.0));
}

/// The kept run of a disk: a request is a notification and an end of interrupt, QEMU handles the notification without ioeventfd, and an I/O
/// thread takes the place of its main loop, turn for turn.
#[test]
fn disk_accesses_by_cause() {
    let disk = Traffic::of(&json(&["lab", "network", "--show", &capture("disk")]));
    for workload in ["read", "write"] {
        let of = |vm: &str, column: &str| disk.each(workload, vm, column);
        for vm in ["plain", "plain+iothread", "plain-ioeventfd", "plain+swiotlb"] {
            assert!((0.99..1.05).contains(&of(vm, "device_mmio")), "{workload} {vm}");
            assert!((0.99..1.1).contains(&of(vm, "apic")), "{workload} {vm}");
            let to_vmm = if vm == "plain-ioeventfd" { 1.0 } else { 0.0 };
            assert!((of(vm, "to_vmm") - to_vmm).abs() < 0.05, "{workload} {vm}");
            let turns = ["vmm_turns", "io_turns"].map(|column| of(vm, column));
            let [least, most] = if vm == "plain+iothread" { [0, 1] } else { [1, 0] };
            assert!(turns[least] < 0.05 && turns[most] > 1.9, "{workload} {vm}: {turns:?}");
        }
        // The copy keeps the vCPU busy until the answer is there.
        assert!(of("plain", "idle") > 0.2 && of("plain+swiotlb", "idle") == 0.0, "{workload}");
    }
}

/// The kept run of a bounce buffer under streams and paced requests: a stream from the VM took twice the exits, requests the same.
#[test]
fn a_bounce_buffer_under_streams_and_requests() {
    let load = Traffic::of(&json(&["lab", "network", "--show", &capture("load")]));
    let ratio = |workload: &str| {
        load.each(workload, "plain+swiotlb", "exits") / load.each(workload, "plain", "exits")
    };
    assert!((1.8..2.3).contains(&ratio("send")), "{}", ratio("send"));
    assert!((1.05..1.3).contains(&ratio("receive")), "{}", ratio("receive"));
    assert!((0.95..1.05).contains(&ratio("paced")), "{}", ratio("paced"));
}

/// The kept run of two vCPUs that poll: a request takes neither an IPI nor a HLT.
#[test]
fn polling_vcpus_need_no_ipi() {
    let run = Traffic::of(&json(&["lab", "network", "--show", &capture("smp-poll")]));
    let of = |vm: &str| ["idle", "ipi", "exits"].map(|column| run.each("request", vm, column));
    assert_eq!([of("plain+smp"), of("plain+smp+poll")], [[2.45, 0.9, 8.65], [0.0, 0.0, 17.6]]);
}

/// The kept run of nested VMs: a request takes the same exits at L2 as at L1, and each of them makes L1 take 5 more: VMRUN, a read of DEBUGCTL,
/// two VMLOAD and one VMSAVE, or more where L1 runs another thread.
#[test]
fn each_exit_of_l2_takes_five_of_l1() {
    let document = json(&["lab", "network", "--show", &capture("nested")]);
    let rows = document["traffic"].as_array().unwrap();
    let exits = |workload: &str, vm: &str, level: &str| {
        let of =
            |row: &&Value| row["workload"] == workload && row["vm"] == vm && row["level"] == level;
        rows.iter().find(of).unwrap()["exits"].as_f64().unwrap()
    };
    let table: Vec<[f64; 3]> = ["request", "timer", "read"]
        .map(|workload| {
            [
                exits(workload, "plain", "L1"),
                exits(workload, "plain+nested", "L2"),
                exits(workload, "plain+nested", "L1"),
            ]
        })
        .to_vec();
    assert_eq!(table, [[4.095, 4.295, 22.935], [4.97, 5.02, 32.94], [2.575, 2.2, 12.515]]);
    let levels = document["levels"].as_array().unwrap();
    let kind = |reason: &str| {
        let of = |row: &&Value| {
            row["workload"] == "request" && row["vm"] == "plain+nested" && row["reason"] == reason
        };
        let row = levels.iter().find(of).unwrap();
        ["alone", "l2", "l1"].map(|column| row[column].as_f64().unwrap())
    };
    assert_eq!(kind("vmrun"), [0.0, 0.0, 4.285]);
    assert_eq!(kind("npf"), [1.0, 1.005, 0.005]);
    let [alone, l2, l1] = kind("vintr");
    assert!((alone - l2).abs() < 0.1 && l1 < 0.2, "{alone} {l2} {l1}");
}

/// The kept run of two VMs: VM and peer are VMs of their own at L1, and in one L1 their exits are together.
#[test]
fn a_peer_has_exits_of_its_own() {
    let document = json(&["lab", "network", "--show", &capture("peer")]);
    let table: Vec<(&str, &str, &str, f64)> = document["traffic"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["workload"] == "request")
        .map(|row| {
            let word = |key: &str| row[key].as_str().unwrap();
            (word("vm"), word("level"), word("workload"), row["exits"].as_f64().unwrap())
        })
        .collect();
    let expected = [
        ("plain", "L1", 4.105),
        ("plain with peer", "L1", 4.555),
        ("peer of plain", "L1", 4.275),
        ("plain+nested", "L2", 4.3),
        ("plain+nested", "L1", 23.025),
        ("plain+nested with peer", "L2", 9.22),
        ("plain+nested with peer", "L1", 50.36),
    ];
    let expected = expected.map(|(vm, level, exits)| (vm, level, "request", exits));
    assert_eq!(table, expected);
    let levels = document["levels"].as_array().unwrap();
    let alone = |vm: &str, reason: &str| {
        let of = |row: &&Value| {
            row["workload"] == "request" && row["vm"] == vm && row["reason"] == reason
        };
        levels.iter().find(of).unwrap()["alone"].as_f64().unwrap()
    };
    // The VM and its peer together.
    assert!((alone("plain+nested with peer", "npf") - 2.01).abs() < 1e-9);
    assert_eq!(alone("plain+nested", "npf"), 1.0);
}

/// Three kept runs, each from the boot of its host: exits of a request and of an access to the disk repeat within 1 %, those of streams do not.
#[test]
fn repeated_runs_differ_by_so_much() {
    let runs = ["repeat-1", "repeat-2", "repeat-3"]
        .map(|name| Traffic::of(&json(&["lab", "network", "--show", &capture(name)])));
    for (workload, most) in [
        ("request", 0.01),
        ("read", 0.01),
        ("write", 0.011),
        ("paced", 0.015),
        ("timer", 0.03),
        ("send", 0.04),
        ("receive", 0.06),
    ] {
        let exits: Vec<f64> = runs.iter().map(|run| run.each(workload, "plain", "exits")).collect();
        let least = exits.iter().copied().fold(f64::INFINITY, f64::min);
        let spread = exits.iter().copied().fold(0.0, f64::max) / least - 1.0;
        assert!(spread <= most, "{workload}: {exits:?}");
    }
}

/// A guest's guest on the real host, and a second VM as client.
#[test]
#[ignore = "minutes: a VM of QEMU boots in a VM of QEMU on an emulated host, and two beside each other"]
fn a_nested_vm_and_a_peer_boot() {
    let nested = json(&["lab", "network", "--vm", "plain+nested", "--workload", "request"]);
    let exits: Vec<f64> = nested["traffic"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["exits"].as_f64().unwrap())
        .collect();
    assert!((4.0..4.7).contains(&exits[0]) && (20.0..26.0).contains(&exits[1]), "{exits:?}");
    let words = ["lab", "network", "--vm", "plain", "--client", "peer", "--workload", "request"];
    let peer = Traffic::of(&json(&words));
    for vm in ["plain with peer", "peer of plain"] {
        assert!((0.9..1.2).contains(&peer.each("request", vm, "device_mmio")), "{vm}");
    }
}

/// A report of a kept run has the table, its page a chart, and of several runs it names the command that shows them.
#[test]
fn a_report_has_the_table_and_its_page_a_chart() {
    let run = capture("vhost");
    let shown = |words: &[&str]| {
        let output = crate::run::vmtax(words).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = shown(&["report", &run]);
    let row = |vm: &str| text.lines().find(|line| line.contains(vm) && line.contains("2.02"));
    assert!(text.contains("Traffic: exits of one operation by cause"), "{text}");
    assert!(row("plain ").is_some() && row("plain+vhost").is_some(), "{text}");
    let page = shown(&["report", &run, "--format", "html"]);
    let charts = page.matches("aria-label=\"Exits of one operation of ").count();
    assert_eq!(charts, 3, "a chart for each workload");
    let (code, message) = refused(&["report", &run, &capture("polling")]);
    assert_eq!(code, 4, "{message}");
    assert!(message.contains("`vmtax lab network --show` shows several of them"), "{message}");
}

/// Two runs of the same VMs: the exits of a request are the same within 1 %, and those of a sleep, which depend on when its timer expires, within
/// 5 %; and they are those of the kept run.
#[test]
#[ignore = "minutes: two VMs of QEMU boot on an emulated host, twice"]
fn exits_of_a_request_repeat() {
    let words = ["lab", "network", "--vm", "plain,plain+vhost", "--workload", "request,timer"];
    let [first, second] = [(); 2].map(|()| Traffic::of(&json(&words)));
    for (workload, vm) in first.0.keys() {
        let [a, b] = [&first, &second].map(|run| run.each(workload, vm, "exits"));
        let most = if workload == "request" { 0.01 } else { 0.05 };
        assert!((a - b).abs() <= most * a, "{workload} {vm}: {a} and {b}");
    }
    vhost(&first);
}

fn vhost(run: &Traffic) {
    for vm in ["plain", "plain+vhost"] {
        let request = |column: &str| run.each("request", vm, column);
        // A notification and an end of interrupt each for request and answer, none of which QEMU handles.
        assert!((0.99..1.1).contains(&request("device_mmio")), "{vm}");
        assert!((1.9..2.2).contains(&request("apic")), "{vm}");
        assert!((3.8..4.5).contains(&request("exits")), "{vm}");
        assert!(request("to_vmm") < 0.05, "{vm}");
    }
    let turns =
        |vm: &str| ["vmm_turns", "vhost_turns"].map(|column| run.each("request", vm, column));
    let ([vmm, vhost], [vmm_beside_vhost, vhost_alone]) = (turns("plain"), turns("plain+vhost"));
    assert!(vmm > 1.5 && vhost < 0.05, "{vmm} {vhost}");
    assert!(vmm_beside_vhost < 0.05 && vhost_alone > 1.5, "{vmm_beside_vhost} {vhost_alone}");
}
