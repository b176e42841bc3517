//! `vmtax record --starts` in the emulated host, beside the suite `start` and the kernel's own tracepoint of system calls.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::record::observe_script;
use crate::run::{json, path, row};

const WATCHERS: &str = r#"
./vmtax record --starts --format json -o starts.json -- trace-cmd record -b 30000 -e syscalls:sys_enter_ioctl -e syscalls:sys_exit_ioctl -e sched:sched_switch -o trace.dat >starts.said 2>&1 & live=$!
end() {
    kill -INT $live
    wait $live
    exit 0
}
trap end INT
while kill -0 $live; do wait $live; done
"#;

/// VMs whose requests are compared: the suite makes 127.
const LAST: usize = 120;

/// Steps of the suite, and what they are in the recording of the same VM.
const STEPS: [(&str, &str); 8] = [
    ("create-vm", "KVM_CREATE_VM"),
    ("create-irqchip", "KVM_CREATE_IRQCHIP"),
    ("create-pit", "KVM_CREATE_PIT2"),
    ("set-cpuid", "KVM_SET_CPUID2"),
    ("irqfd-deassign", "KVM_IRQFD, removed"),
    ("run-first", "KVM_RUN, first"),
    ("run-second-vcpu", "KVM_RUN, first of another vCPU"),
    ("destroy-mapped", "close of the VM"),
];

#[test]
fn starts_are_those_of_the_suite() {
    let folder = tempfile::tempdir().unwrap();
    let found = observe_script(folder.path(), WATCHERS, &[], &["--suite", "start"]);
    let text = fs::read_to_string(found.join("starts.json")).unwrap();
    let recorded: Value = serde_json::from_str(&text).unwrap_or_else(|e| {
        panic!("{e}: {text} {}", fs::read_to_string(found.join("starts.said")).unwrap_or_default())
    });
    // Every request but KVM_RUN, which is timed once for each vCPU. trace-cmd may be ready after the first VMs: the last ones are compared.
    let mut counted = requests(&found.join("trace.dat"));
    assert!(counted.remove("KVM_RUN") > Some(100));
    let starts = recorded["starts"].as_array().unwrap();
    let last: Vec<&Value> =
        starts[starts.len() - LAST..].iter().map(|start| &start["vm"]).collect();
    let mut told = BTreeMap::<String, u64>::new();
    for row in
        recorded["vm_steps"].as_array().unwrap().iter().filter(|row| last.contains(&&row["vm"]))
    {
        let name = row["step"].as_str().unwrap().split(',').next().unwrap();
        if !name.starts_with("close") && name != "KVM_RUN" {
            *told.entry(name.to_owned()).or_default() += row["count"].as_u64().unwrap();
        }
    }
    assert_eq!(told, counted);
    let trace = found.join("trace.dat");
    let told = json(&["report", trace.to_str().unwrap(), "--event", "starts"]);
    system_calls_tell_the_same(&recorded, &told);
    times_are_those_of_the_suite(
        &recorded,
        &json(&["report", folder.path().join("run").to_str().unwrap()]),
    );
}

/// The host's tick, which is in a call of one recorder and not in the same call of the other, ns.
const TICK: f64 = 10_000.0;

/// What tracepoints of system calls tell of the last VMs. Their times have what the probes of the other recorder take: 2,600 instructions a call.
fn system_calls_tell_the_same(recorded: &Value, told: &Value) {
    let steps = |report: &Value| {
        let vms = report["starts"].as_array().unwrap();
        let rows = report["vm_steps"].as_array().unwrap();
        let of = |vm: &Value| {
            let mut steps = BTreeMap::<String, (u64, f64, f64)>::new();
            for row in rows.iter().filter(|row| row["vm"] == vm["vm"]) {
                let name = row["step"].as_str().unwrap().trim_end_matches(", removed").to_owned();
                let step = steps.entry(name).or_default();
                step.0 += row["count"].as_u64().unwrap();
                step.1 += row["total_ns"].as_f64().unwrap();
                step.2 += row["off_cpu_ns"].as_f64().unwrap();
            }
            steps.retain(|name, _| !name.starts_with("close"));
            steps
        };
        vms[vms.len() - LAST..].iter().map(of).collect::<Vec<_>>()
    };
    let mut compared = 0;
    for (live, imported) in steps(recorded).iter().zip(&steps(told)) {
        assert_eq!(live.keys().collect::<Vec<_>>(), imported.keys().collect::<Vec<_>>());
        for ((name, (count, ns, away)), (times, longer, longer_away)) in
            live.iter().zip(imported.values())
        {
            assert_eq!(count, times, "{name}");
            let most = TICK + 8_000.0 * *count as f64 + 0.03 * ns;
            assert!((-TICK..most).contains(&(longer - ns)), "{name}: {ns} ns, {longer} ns");
            assert!((longer_away - away).abs() < most, "{name}: {away} ns, {longer_away} ns");
            compared += count;
        }
    }
    assert!(compared > 1_000, "{compared}");
}

/// The requests of KVM that perf's library reads in the recording of the last VMs, by name.
fn requests(trace: &std::path::Path) -> BTreeMap<String, u64> {
    let report = Command::new("trace-cmd").arg("report").arg(trace).output().unwrap();
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    let mut vms = vec![BTreeMap::<String, u64>::new()];
    for line in text.lines() {
        let Some((_, rest)) = line.split_once("cmd: 0x") else { continue };
        let digits: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
        let request = u32::from_str_radix(&digits, 16).unwrap();
        let known = REQUESTS.iter().find(|(number, _)| *number == request);
        let name = known.map_or_else(|| format!("ioctl {request:#x}"), |one| one.1.to_owned());
        // What the suite asks before it makes a VM.
        if name == "KVM_GET_SUPPORTED_CPUID" {
            vms.push(BTreeMap::new());
        }
        if request >> 8 & 0xff == 0xae {
            *vms.last_mut().unwrap().entry(name).or_default() += 1;
        }
    }
    let mut counts = BTreeMap::new();
    for (name, count) in vms.split_off(vms.len() - LAST).into_iter().flatten() {
        *counts.entry(name).or_default() += count;
    }
    counts
}

/// Linux `include/uapi/linux/kvm.h`.
const REQUESTS: &[(u32, &str)] = &[
    (0xae00, "KVM_GET_API_VERSION"),
    (0xae01, "KVM_CREATE_VM"),
    (0xae03, "KVM_CHECK_EXTENSION"),
    (0xae04, "KVM_GET_VCPU_MMAP_SIZE"),
    (0xc008_ae05, "KVM_GET_SUPPORTED_CPUID"),
    (0xae41, "KVM_CREATE_VCPU"),
    (0x4020_ae46, "KVM_SET_USER_MEMORY_REGION"),
    (0xae47, "KVM_SET_TSS_ADDR"),
    (0x4008_ae48, "KVM_SET_IDENTITY_MAP_ADDR"),
    (0xae60, "KVM_CREATE_IRQCHIP"),
    (0x4020_ae76, "KVM_IRQFD"),
    (0x4040_ae77, "KVM_CREATE_PIT2"),
    (0x4040_ae79, "KVM_IOEVENTFD"),
    (0xae80, "KVM_RUN"),
    (0x8090_ae81, "KVM_GET_REGS"),
    (0x4090_ae82, "KVM_SET_REGS"),
    (0x8138_ae83, "KVM_GET_SREGS"),
    (0x4138_ae84, "KVM_SET_SREGS"),
    (0x4008_ae89, "KVM_SET_MSRS"),
    (0x8400_ae8e, "KVM_GET_LAPIC"),
    (0x4400_ae8f, "KVM_SET_LAPIC"),
    (0x4008_ae90, "KVM_SET_CPUID2"),
    (0x4004_ae99, "KVM_SET_MP_STATE"),
    (0x4068_aea3, "KVM_ENABLE_CAP"),
    (0x8080_aea1, "KVM_GET_DEBUGREGS"),
    (0x4080_aea2, "KVM_SET_DEBUGREGS"),
    (0x8004_ae98, "KVM_GET_MP_STATE"),
    (0x8040_ae9f, "KVM_GET_VCPU_EVENTS"),
    (0x4040_aea0, "KVM_SET_VCPU_EVENTS"),
    (0x9000_aea4, "KVM_GET_XSAVE"),
    (0x8188_aea6, "KVM_GET_XCRS"),
    (0x81a0_ae8c, "KVM_GET_FPU"),
    (0x41a0_ae8d, "KVM_SET_FPU"),
];

/// The VMs of the suite's lives, by what only they do.
fn times_are_those_of_the_suite(recorded: &Value, report: &Value) {
    let rows = recorded["vm_steps"].as_array().unwrap();
    let of = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    let lives: Vec<String> = rows
        .iter()
        .filter(|row| row["step"] == "KVM_IOEVENTFD, removed")
        .map(|row| of(row, "vm"))
        .collect();
    assert_eq!(lives.len(), 21);
    for (step, name) in STEPS {
        let mut times: Vec<f64> = rows
            .iter()
            .filter(|row| row["step"] == name && lives[1..].contains(&of(row, "vm")))
            .map(|row| row["total_ns"].as_f64().unwrap() / row["count"].as_f64().unwrap())
            .collect();
        times.sort_by(f64::total_cmp);
        let recorded = times[10];
        let row = row(report, step);
        let waited = |end: &str| row["waited"][end].as_f64().unwrap_or_default();
        // A wait ends with a tick of the host, so waits differ by ticks: the median of sums is no sum of medians, and lies between the ends.
        let (least, most) = (path(row) + waited("min"), path(row) + waited("max"));
        // What the probes and trace-cmd take outside of the recorded time: 3,500 to 4,000 instructions. The clock counts them.
        let (least, most) = (least - 5_000.0 - 0.01 * least, most + 0.01 * most);
        assert!((least..most).contains(&recorded), "{step}: {recorded} recorded, measured {row}");
    }
}
