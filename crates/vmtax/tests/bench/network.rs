//! Client and server on different systems: paths, peers, taps, and what a kill leaves.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{matrix, measured, name, ok, refused, row, rows};

/// Time for a VM to boot on a busy machine.
const BOOT: Duration = Duration::from_secs(600);

const HEAD: &str = r#"
name = "network"
repeats = 1
warmup = false
limit_seconds = 600
[vm]
accel = "tcg"
cpus = 2
memory = 768
"#;

/// A matrix with these lines of `[vm]`, and these workloads with these places.
fn of(categories: &str, vm: &str, workloads: &[&str], place: &str) -> String {
    let each = |workload: &&str| {
        let seconds = if *workload == "redis" { "requests = 100" } else { "seconds = 1" };
        format!("[[workload]]\nuse = \"{workload}\"\nset = {{ {seconds} }}\n{place}\n")
    };
    let workloads: String = workloads.iter().map(each).collect();
    format!("categories = {categories}\n{HEAD}{vm}\n{workloads}")
}

#[test]
fn a_client_on_the_host_reaches_servers_in_vms_of_two_categories() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let workloads =
        ["tcp-latency", "udp-latency", "tcp-stream", "udp-stream", "iperf-tcp", "redis"];
    let categories = "[\"plain\", \"plain+swiotlb\"]";
    let text = of(categories, "", &workloads, "client = \"host\"");
    let shown = measured(folder.path(), &text, &run);
    assert!(!shown.contains("failed ("), "{shown}");
    let found = rows(&run);
    for (workload, metric) in [
        ("tcp-latency", "time"),
        ("tcp-latency", "latency-p99"),
        ("udp-latency", "time"),
        ("tcp-stream", "throughput"),
        ("udp-stream", "throughput"),
        ("udp-stream", "lost"),
        ("iperf-tcp", "throughput"),
        ("redis", "set-rate"),
    ] {
        for (category, baseline) in [("plain", ""), ("plain+swiotlb", "plain")] {
            let row = row(&found, workload, metric, category);
            assert_eq!(row["path"], "host > user > vm", "{workload}");
            assert_eq!(row["baseline"], baseline, "{workload}");
            // One value has no interval and no p.
            let of_one = ["median_low", "overhead_low", "p"].map(|column| row[column].as_str());
            assert_eq!((row["n"].as_str(), of_one), ("1", ["", "", ""]), "{workload}");
        }
    }
    let busy: f64 = row(&found, "tcp-stream", "utilisation", "plain")["median"].parse().unwrap();
    assert!(busy > 0.0 && busy <= 100.0, "{busy}");
    let of_qemu: f64 =
        row(&found, "tcp-stream", "vmm-cpu-time", "plain")["median"].parse().unwrap();
    assert!(of_qemu > 0.0, "{of_qemu}");
    // The packets crossed the VM's network card: with +swiotlb it used the bounce buffer.
    let facts = run.join("facts/plain+swiotlb_over_host-user-vm.json");
    assert!(fs::read_to_string(facts).unwrap().contains("\"bounce buffer slots\": \"32768\""));
}

/// The reverse, and a second VM.
#[test]
fn servers_are_on_the_host_and_clients_in_a_peer() {
    for (place, path) in
        [("server = \"host\"", "vm > user > host"), ("client = \"peer\"", "peer > socket > vm")]
    {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        let workloads = ["tcp-latency", "udp-latency", "iperf-tcp"];
        let text = of("[\"plain\"]", "", &workloads, place);
        let shown = measured(folder.path(), &text, &run);
        assert!(!shown.contains("failed ("), "{shown}");
        let found = rows(&run);
        for (workload, metric) in
            [("tcp-latency", "time"), ("udp-latency", "time"), ("iperf-tcp", "throughput")]
        {
            assert_eq!(row(&found, workload, metric, "plain")["path"], path, "{workload}");
        }
    }
}

/// Network namespaces that processes are in or have open.
fn namespaces() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let fds = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        let links = fds.map(|fd| fd.path()).chain([entry.path().join("ns/net")]);
        let names = links.filter_map(|link| fs::read_link(link).ok());
        let names = names.map(|link| link.display().to_string());
        found.extend(names.filter(|link| link.starts_with("net:[")));
    }
    found
}

/// Processes that have a file of this folder open, and all their descriptors.
fn users(folder: &Path) -> Vec<u32> {
    let has = |process: &Path| {
        let fds = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let mut files = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
        files.any(|file| file.starts_with(folder))
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let processes = processes.filter(|entry| has(&entry.path()));
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + BOOT;
    while !done() {
        assert!(Instant::now() < until, "not within {} s: {what}", BOOT.as_secs());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn start(words: &[&str]) -> Child {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lab-cache");
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmtax"));
    command.arg("bench").args(words).env("XDG_CACHE_HOME", cache);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// A run over taps is killed while its VMs run: no process, tap or namespace of it is left, and the run is gone on with.
#[test]
fn a_kill_leaves_no_tap_and_no_namespace() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/net/tun").exists() {
        return vmtax_skipped::system("taps need root and /dev/net/tun");
    }
    let folder = tempfile::tempdir().unwrap();
    let canonical = folder.path().canonicalize().unwrap();
    let run = canonical.join("run");
    // A peer, so that there are two taps and a bridge.
    let text =
        of("[\"plain\"]", "network = \"tap\"", &["tcp-latency", "ping"], "client = \"peer\"")
            .replace(
                "use = \"ping\"\nset = { seconds = 1 }",
                "use = \"ping\"\nset = { count = 5 }",
            );
    let matrix = matrix(&canonical, &text);
    let words = ["run", name(&matrix), "-o", name(&run), "--resume"];
    let mut vmtax = start(&words);
    let mut own = BTreeSet::new();
    wait_until("a namespace and two machines", || {
        let fds = fs::read_dir(format!("/proc/{}/fd", vmtax.id())).into_iter().flatten().flatten();
        let links = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
        own = links
            .map(|link| link.display().to_string())
            .filter(|link| link.starts_with("net:["))
            .collect();
        !own.is_empty() && users(&canonical).len() > 2
    });
    vmtax.kill().unwrap();
    vmtax.wait().unwrap();
    wait_until("the machines end", || users(&canonical).is_empty());
    wait_until("its namespace is gone", || namespaces().is_disjoint(&own));
    for tap in ["vm", "peer", "bridge"] {
        assert!(!Path::new("/sys/class/net").join(tap).exists(), "{tap} is left");
    }
    ok(&words);
    let found = rows(&run);
    for (workload, metric) in [("tcp-latency", "time"), ("ping", "latency")] {
        let row = row(&found, workload, metric, "plain");
        assert_eq!((row["path"].as_str(), row["n"].as_str()), ("peer > tap > vm", "1"));
    }
}

/// A card with two queues in each direction carries traffic.
#[test]
fn a_card_has_several_queues() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/net/tun").exists() {
        return vmtax_skipped::system("taps need root and /dev/net/tun");
    }
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let text = of("[\"plain+mq\"]", "network = \"tap\"", &["tcp-stream"], "client = \"host\"");
    let shown = measured(folder.path(), &text, &run);
    assert!(!shown.contains("failed ("), "{shown}");
    let found = rows(&run);
    assert_eq!(row(&found, "tcp-stream", "throughput", "plain+mq")["path"], "host > tap > vm");
}

#[test]
fn impossible_places_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let says = |text: String, code: i32, sentence: &str| {
        let (found, said) =
            refused(&["run", name(&matrix(folder.path(), &text)), "-o", name(&run)]);
        assert!(found == code && said.contains(sentence), "{found} {said}");
    };
    let plain = "[\"plain\"]";
    let host = "client = \"host\"";
    says(
        of(plain, "", &["tcp-latency"], "client = \"host\"\nserver = \"peer\""),
        4,
        "both outside",
    );
    says(of(plain, "", &["cpuid"], host), 4, "has no server");
    says(of(plain, "network = \"socket\"", &["redis"], host), 4, "does not reach the host");
    says(
        of(plain, "", &["redis"], "client = \"peer\"\naccel = \"amd\""),
        4,
        "no network to the outside",
    );
    says(of(plain, "", &["redis"], "client = \"elsewhere\""), 4, "elsewhere");
    says(of("[\"plain+mq\"]", "", &["redis"], host), 7, "mq: needs a tap");
    says(
        of("[\"plain+vhost-user\"]", "", &["redis"], host),
        7,
        "vhost-user: vmtax starts no program",
    );
    let ping = of(plain, "", &["ping"], host).replace("set = { seconds = 1 }", "");
    says(ping, 4, "forwards TCP and UDP only");
}

/// Runs of the same cell over different paths are not compared.
#[test]
fn results_over_different_paths_are_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let table = |path: &str| {
        let file = folder.path().join(format!("{path}.csv"));
        let rows: String = (0..5)
            .map(|repeat| {
                format!(
                    "w,plain,{repeat},network-path,host > {path} > vm,1,neither\nw,plain,{repeat},rate,1/s,{repeat}1,higher\n"
                )
            })
            .collect();
        let text = format!("workload,category,repeat,metric,unit,value,better\n{rows}");
        fs::write(&file, text).unwrap();
        file
    };
    let (user, tap) = (table("user"), table("tap"));
    assert!(ok(&["compare", name(&user)]).contains("host > user > vm"));
    let (code, said) = refused(&["compare", name(&user), name(&tap)]);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("over host > user > vm and over host > tap > vm"), "{said}");
    ok(&["compare", name(&user), name(&user)]);
}
