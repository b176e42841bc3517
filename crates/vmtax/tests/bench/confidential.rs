//! Categories `snp` and `tdx`: QEMU takes the whole command line, up to the hardware that is missing here; and the machine around it boots by its
//! firmware, to the agent.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ok;
use vmtax_bench::category::{MatrixCategory, SystemFacts};
use vmtax_bench::target::{Accel, Target};
use vmtax_bench::vm::{MatrixVms, Purpose};
use vmtax_machine::{Stop, kernel};

/// Names the category of a child process.
const CATEGORY: &str = "VMTAX_TEST_CATEGORY";
/// Firmware that can boot both kinds of guest.
const FIRMWARE: &str = "/usr/share/ovmf/OVMF.fd";

/// Programs of QEMU that this computer has: the installed one, and those of `crates/lab/second-qemu.sh`. Version, and folder.
fn emulators() -> Vec<(String, Option<PathBuf>)> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = cache.or_else(home).unwrap_or_default().join("vmtax");
    let unpacked = ["bookworm", "trixie"].map(|release| {
        let folder = cache.join(format!("second-qemu-{release}/usr/bin"));
        if !folder.exists() {
            vmtax_skipped::system(&format!(
                "there is no second QEMU: crates/lab/second-qemu.sh {release}"
            ));
        }
        folder
    });
    let unpacked = unpacked.into_iter().filter(|folder| folder.exists()).map(Some);
    let version = |folder: &Option<PathBuf>| {
        let name = "qemu-system-x86_64";
        let program = folder.as_ref().map_or(PathBuf::from(name), |folder| folder.join(name));
        let said = Command::new(program).arg("--version").output().unwrap().stdout;
        let said = String::from_utf8(said).unwrap();
        said.split_whitespace().nth(3).unwrap().to_owned()
    };
    std::iter::once(None).chain(unpacked).map(|folder| (version(&folder), folder)).collect()
}

/// What a VM of a category says of itself, or who refuses it.
fn attempt(category: &MatrixCategory, accel: Accel) -> Result<SystemFacts, String> {
    let folder = tempfile::tempdir().unwrap();
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lab-cache/vmtax/kernels");
    let target = Target { accel, firmware: Some(FIRMWARE.into()), ..Target::default() };
    let (console, stop) = (folder.path().join("console"), Stop::default());
    let purpose = Purpose {
        program: vmtax_lab::guest_program(),
        workloads: &[],
        console: &console,
        accel,
        stop: &stop,
    };
    let kernel = kernel::distribution(&cache).unwrap();
    let vms = MatrixVms::new(&target, kernel, &purpose).unwrap();
    vms.attempt(category).map_err(|error| error.to_string())
}

/// One of the tests below in a process with that QEMU first on its PATH; what it printed.
fn with(folder: Option<&Path>, test: &str, category: &str) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--ignored", "--nocapture", test]).env(CATEGORY, category);
    if let Some(folder) = folder {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(paths).unwrap());
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn named() -> MatrixCategory {
    MatrixCategory::read(&std::env::var(CATEGORY).unwrap_or_else(|_| "snp".to_owned())).unwrap()
}

fn has_firmware() -> bool {
    let there = Path::new(FIRMWARE).exists();
    if !there {
        vmtax_skipped::package("ovmf");
    }
    there
}

#[test]
#[ignore = "a part of the test below"]
fn one_is_refused() {
    println!("{}", attempt(&named(), Accel::Kvm).unwrap_err());
}

/// QEMU asks KVM for the type of VM, which is the first thing that hardware decides.
#[test]
fn kvm_refuses_what_qemu_takes() {
    if !has_firmware() {
        return;
    }
    if !Path::new("/dev/kvm").exists() {
        return vmtax_skipped::system("there is no /dev/kvm, which would say what it lacks");
    }
    for (version, folder) in emulators().iter().skip(1) {
        for (category, kind) in [("snp", "SEV-SNP"), ("tdx", "TDX")] {
            let said = with(folder.as_deref(), "confidential::one_is_refused", category);
            println!("QEMU {version}, {category}: {said}");
            let expected = match (category, version.starts_with("10.0")) {
                // Its first version is 10.1.
                ("tdx", true) => "'qom-type' does not accept value 'tdx-guest'".to_owned(),
                _ => format!("vm-type {kind} not supported by KVM"),
            };
            assert!(said.contains(&expected), "QEMU {version}, {category}: {said}");
        }
    }
}

#[test]
#[ignore = "a part of the test below"]
fn one_boots() {
    let facts = attempt(&named().without_hardware(), Accel::Tcg).unwrap();
    println!("{}\n{}", facts["command line"], facts["devices"]);
}

/// All but the hardware: the machine, UEFI firmware, the kernel that it starts, and the mailbox on virtio.
#[test]
fn the_machine_around_it_boots_by_its_firmware() {
    if !has_firmware() {
        return;
    }
    for (version, folder) in emulators() {
        for category in ["snp", "tdx+poll"] {
            let said = with(folder.as_deref(), "confidential::one_boots", category);
            println!("QEMU {version}, {category}: {said}");
            assert!(said.contains("vmtax.mailbox=virtio"), "{said}");
            assert_eq!(said.contains("idle=poll"), category == "tdx+poll", "{said}");
            // q35's host bridge, and modern virtio: network, and the mailbox's disk.
            for device in ["8086:29c0", "1af4:1041", "1af4:1042"] {
                assert!(said.contains(device), "QEMU {version}, {category}: {said}");
            }
        }
    }
}

/// The published categories and workloads: each client of a network is outside of the VM, and what a category does not change is left out of it.
#[test]
fn the_published_matrix_crosses_the_vms_boundary() {
    let matrix = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/bench/confidential.toml");
    let text = ok(&["run", matrix, "--dry-run"]);
    let paths: Vec<&str> =
        text.lines().filter(|line| line.starts_with("  ") && line.contains(" path: ")).collect();
    let commands = &text[text.find("\ncommands\n").unwrap()..];
    let of = |workload: &str| {
        let line = commands.lines().find(|line| line.starts_with(&format!("  {workload} path: ")));
        line.map(|line| line.rsplit(": ").next().unwrap())
    };
    for workload in [
        "ping",
        "iperf-tcp",
        "iperf-tcp, 8 streams",
        "iperf-udp",
        "iperf-udp, 8 streams",
        "redis-memtier",
        "memcached",
        "nginx",
    ] {
        assert_eq!(of(workload), Some("host > tap > vm"), "{workload}: {paths:?}");
    }
    for workload in [
        "iperf-tcp, remote",
        "iperf-udp, remote",
        "redis, remote",
        "memcached, remote",
        "nginx, remote",
    ] {
        assert_eq!(of(workload), Some("remote > user > vm"), "{workload}: {paths:?}");
    }
    assert_eq!((of("npb-ua"), of("inference")), (None, None));
    let left_out: Vec<&str> = text.lines().filter(|line| line.starts_with("left out: ")).collect();
    for category in ["plain+vhost", "plain+vhost+swiotlb", "snp+vhost", "tdx+vhost"] {
        let of_category = format!("left out: category {category} is not measured with ");
        let lines: Vec<&&str> =
            left_out.iter().filter(|line| line.starts_with(&of_category)).collect();
        assert_eq!(lines.len(), 2, "{left_out:?}");
        assert!(
            lines[0].contains("iperf-tcp, remote") && lines[1].contains("npb-ua, inference"),
            "{lines:?}"
        );
    }
    assert_eq!(left_out.len(), 8);
    // 19 categories x 15 workloads x 5 repeats, without 4 categories' 7 workloads.
    assert!(text.contains("; 1285 cells here"), "{text}");
    for words in [
        " -P 8",
        "guest command line: ",
        "cpuidle_haltpoll.force=Y",
        "swiotlb=503424,force",
        ",-tsc-deadline",
    ] {
        assert!(text.contains(words), "{words}");
    }
}

/// The kept run: every workload that one computer has ran to its end in each of three VMs, over a tap where it has a client of its own.
#[test]
fn every_workload_ran_to_its_end_once() {
    let run = concat!(env!("CARGO_MANIFEST_DIR"), "/../../captures/bench-confidential/workloads");
    let found = crate::rows(Path::new(run));
    let mut cells = std::collections::BTreeSet::new();
    for row in found.values() {
        assert_eq!(
            (row["failed"].as_str(), row["accelerator"].as_str()),
            ("0", "emulated:QEMU TCG")
        );
        cells.insert((row["workload"].clone(), row["category"].clone()));
    }
    let workloads: std::collections::BTreeSet<&String> =
        cells.iter().map(|(name, _)| name).collect();
    assert_eq!((cells.len(), workloads.len()), (75, 25));
    let crossing = found.values().filter(|row| row["path"] == "host > tap > vm");
    let crossing: std::collections::BTreeSet<&str> =
        crossing.map(|row| row["workload"].as_str()).collect();
    let expected = [
        "iperf-tcp",
        "iperf-udp",
        "memcached",
        "nginx",
        "ping",
        "redis",
        "redis-memtier",
        "tcp-latency",
        "tcp-stream",
        "udp-latency",
        "udp-stream",
    ];
    assert_eq!(crossing.into_iter().collect::<Vec<_>>(), expected);
}
