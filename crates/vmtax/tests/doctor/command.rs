//! The commands from outside: on this machine, without root, with hostile names, through ssh.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::check::{Program, check, executable, stdout, succeed};
use crate::root::{MadeRoot, PID};

fn made(root: &MadeRoot) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    root.write(&folder.path().join("host"));
    MadeRoot::guest().write(&folder.path().join("guest"));
    folder
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

fn verdict<'a>(document: &'a Value, check: &str) -> &'a str {
    let findings = document["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["check"] == check);
    found.and_then(|finding| finding["verdict"].as_str()).unwrap_or("none")
}

#[test]
fn this_machine_can_be_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    for words in [
        "doctor",
        "doctor --guest-root /",
        "doctor --format json --guest-root /",
        "doctor --fix-script",
        "doctor --pages",
        "doctor --pages --format json",
        "doctor --format csv",
        "doctor --format html",
        "doctor --pages --format csv",
        "doctor --pages --format html",
        "doctor --host-pages",
        "doctor --host-pages --format csv",
        "doctor --host-pages --format html",
    ] {
        let out = stdout(folder.path(), words);
        assert!(!out.is_empty(), "{words}");
    }
    let document = json(&stdout(folder.path(), "doctor --format json --guest-root /"));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(document["kernel"], kernel.trim());
    assert_eq!(document["schema"], "vmtax-doctor-1");
}

/// A process that holds a VM of this machine's KVM open. It needs no guest, and no virtualization beyond `/dev/kvm`.
const HOLDER: &str = "import fcntl, os, sys
kvm = os.open('/dev/kvm', os.O_RDWR)
vm = fcntl.ioctl(kvm, 0xAE01, 0)    # KVM_CREATE_VM
vcpu = fcntl.ioctl(vm, 0xAE41, 0)   # KVM_CREATE_VCPU
print('holding', flush=True)
sys.stdin.read()";

#[test]
fn a_vm_of_this_machine_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("python3");
    command.args(["-c", HOLDER]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut holder) = command.spawn() else {
        return vmtax_skipped::package("python3");
    };
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid = holder.id();
    let document = (line == "holding\n")
        .then(|| json(&stdout(folder.path(), &format!("doctor --pages --format json -p {pid}"))));
    // It ends when its input does.
    drop(holder.stdin.take());
    holder.wait().unwrap();
    let Some(document) = document else {
        return vmtax_skipped::system("/dev/kvm cannot be used here");
    };
    let vm = &document["vms"][0];
    assert_eq!((&vm["pid"], &vm["vcpus"], &vm["kind"]), (&pid.into(), &1.into(), &"plain".into()));
    assert!(vm["backing"]["resident"].as_u64().unwrap() > 0, "{vm}");
}

/// `/dev/kvm` may be served by a module that is neither Intel's nor AMD's, and modules may be built in.
#[test]
fn the_kvm_module_in_use_is_named() {
    let built_in = |root: MadeRoot, vendor: &str| {
        root.without("/sys/module/kvm/initstate")
            .without(&format!("/sys/module/{vendor}/initstate"))
            .with("/dev/kvm", "")
    };
    let other = MadeRoot::default()
        .with("/dev/kvm", "")
        .with("/proc/cpuinfo", "vendor_id\t: GenuineIntel\nflags\t\t: fpu hypervisor\n")
        .with("/proc/sys/kernel/osrelease", "6.18.1\n")
        .with("/sys/kernel/tracing/events/kvm/enable", "0\n")
        .with("/sys/module/kvm/parameters/halt_poll_ns", "0\n")
        .with("/sys/module/kvm_pvm/parameters/stats", "N\n");
    let intel = built_in(MadeRoot::intel(), "kvm_intel")
        .with("/sys/module/kvm_intel/parameters/enable_ipiv", "N\n");
    for (root, line, module, is_built_in, why) in [
        (
            &other,
            "kvm_pvm (built into the kernel), whose exits",
            "kvm_pvm",
            true,
            "is served by kvm_pvm",
        ),
        (&intel, "kvm_intel (built into the kernel)", "kvm_intel", true, ""),
        (&MadeRoot::amd(), "kvm_amd (a module)", "kvm_amd", false, ""),
    ] {
        let folder = made(root);
        for command in ["doctor --root host", "doctor --pages --root host"] {
            let text = String::from_utf8(stdout(folder.path(), command)).unwrap();
            assert!(
                text.lines().any(|l| l.trim().starts_with("KVM ") && l.contains(line)),
                "{text}"
            );
            let document = json(&stdout(folder.path(), &format!("{command} --format json")));
            let kvm = &document["kvm"];
            assert_eq!((&kvm["module"], &kvm["built_in"]), (&module.into(), &is_built_in.into()));
            let said = kvm["not_recordable"].as_str().unwrap_or_default();
            assert!(said.contains(why) && said.is_empty() == why.is_empty(), "{said}");
        }
    }
    // An option of a built-in module is a word of the kernel's command line.
    let folder = made(&intel);
    let text = String::from_utf8(stdout(folder.path(), "doctor --root host")).unwrap();
    let fix = "fix   add to the kernel's command line: kvm_intel.enable_ipiv=1";
    assert!(text.contains(fix), "{text}");
    let folder = made(&other);
    let text = String::from_utf8(stdout(folder.path(), "doctor --root host")).unwrap();
    assert!(text.contains("KVM is served by kvm_pvm, not by kvm_intel"), "{text}");
}

/// Without root debugfs is closed and so are others' processes: nothing of it becomes "ok".
#[test]
fn without_root_what_is_closed_is_unknown() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = Program::unprivileged(folder.path());
    let host = folder.path().join("host");
    MadeRoot::intel().write(&host);
    let debugfs = host.join("sys/kernel/debug");
    let fds = host.join("proc/4711/fd");
    let smaps = host.join("proc/4711/smaps");
    let poll = host.join("sys/module/kvm/parameters/halt_poll_ns");
    for closed in [&debugfs, &smaps, &poll] {
        fs::set_permissions(closed, fs::Permissions::from_mode(0o000)).unwrap();
    }
    let ask = |words: &str| json(&succeed(&mut program.command(folder.path(), words)));
    let document = ask("doctor --root host --format json");
    for (check, expected) in [
        ("mapped-pages", "unknown"),
        ("thp-backing", "unknown"),
        ("halt-poll", "unknown"),
        ("thp-enabled", "ok"),
        ("vcpu-pinning", "ok"),
    ] {
        assert_eq!(verdict(&document, check), expected, "{check}");
    }
    let pages = ask("doctor --pages --root host --format json");
    assert_eq!(pages["vms"][0]["mapped"]["unknown"], "permission denied");
    assert_eq!(pages["vms"][0]["mapped"]["bytes_2m"], Value::Null);
    let text = succeed(&mut program.command(folder.path(), "doctor --pages --root host"));
    assert!(String::from_utf8(text).unwrap().contains("permission denied; run as root."));
    // A process that cannot be looked into may be a VM.
    fs::set_permissions(&fds, fs::Permissions::from_mode(0o000)).unwrap();
    let document = ask("doctor --root host --format json");
    assert_eq!(
        (&document["hidden_processes"], verdict(&document, "vhost")),
        (&Value::from(1), "none")
    );
    assert_eq!(verdict(&document, "thp-shmem"), "unknown");
    // This machine, too.
    succeed(&mut program.command(folder.path(), "doctor"));
    succeed(&mut program.command(folder.path(), "doctor --pages"));
    for opened in [&debugfs, &fds] {
        fs::set_permissions(opened, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn mistakes_have_their_exit_codes() {
    let folder = made(&MadeRoot::intel());
    fs::write(folder.path().join("empty"), "").unwrap();
    check(
        &Program::new(),
        folder.path(),
        &[
            (
                "doctor --root none",
                3,
                "none: cannot be read: No such file or directory (os error 2); check its name",
            ),
            ("doctor --root empty", 3, "empty: cannot be read: Not a directory*"),
            (
                "doctor --guest-root none",
                3,
                "none: cannot be read: No such file or directory (os error 2); check its name",
            ),
            (
                "doctor --pages --root none",
                3,
                "none: cannot be read: No such file or directory (os error 2); check its name",
            ),
            ("doctor --root host -p 1", 4, "-p 1: this process runs no VM; there are: 4711 (web)"),
            (
                "doctor --pages --root guest -p 1",
                4,
                "-p 1: this process runs no VM; no process runs a VM",
            ),
            (
                "doctor none",
                3,
                "none: cannot be read: No such file or directory (os error 2); check its name",
            ),
            ("doctor empty", 4, "empty: not a recording*"),
            ("doctor --isa vmx", 2, "--isa: is for recordings; name one"),
            ("doctor --guest root@vm", 2, "invalid value 'root@vm' for '--guest <ssh:USER@HOST>'*"),
            ("doctor --guest ssh:-oProxyCommand=x", 2, "invalid value 'ssh:-oProxyCommand=x' for*"),
            ("doctor --guest ssh:vm --guest-root guest", 2, "*cannot be used with*"),
            ("doctor --fix-script --format json", 2, "*cannot be used with*"),
            ("doctor --pages -p x", 2, "invalid value 'x' for '--pid <PID>'*"),
        ],
    );
}

/// A good host with two bad settings, as people see it.
#[test]
fn costs_come_first_and_lines_fit_80_columns() {
    let root = MadeRoot::intel()
        .with("/sys/module/kvm_intel/parameters/enable_apicv", "N\n")
        .with("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    let folder = made(&root);
    let text = stdout(folder.path(), "doctor --root host");
    let text = String::from_utf8(text).unwrap();
    for part in [
        "Of 63 checks: 2 cost you, 0 unknown,",
        "- thp-enabled, host: guest memory gets no transparent huge pages\n",
        "    seen  /sys/kernel/mm/transparent_hugepage/enabled = always madvise [never]\n",
        "    fix   echo madvise > /sys/kernel/mm/transparent_hugepage/enabled\n",
        "- apicv, host: each interrupt, EOI and access to the APIC is an exit\n",
        "    fix   echo 'options kvm_intel enable_apicv=1' > /etc/modprobe.d/kvm_intel-enable_apicv.conf",
        "- mapped-pages, web (4711): 100 % is mapped in pages of 2M and 1G\n",
        "  VMs    web (4711), plain, 2 vCPUs\n",
    ] {
        assert!(text.contains(part), "{part}\n---\n{text}");
    }
    let at = |part: &str| text.find(part).unwrap();
    assert!(at("Costs you") < at("\nOk\n") && at("\nOk\n") < at("Does not apply"));
    // On a terminal, which `script` makes one of 80 columns.
    let command =
        format!("stty cols 80 rows 24; {} doctor --root host", env!("CARGO_BIN_EXE_vmtax"));
    let script = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .current_dir(folder.path())
        .output();
    let Ok(output) = script else {
        return vmtax_skipped::package("bsdutils");
    };
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("thp-enabled"), "{shown}");
    for line in shown.lines() {
        // A path or a command without spaces cannot be broken.
        let unbroken = line.split_whitespace().any(|word| word.len() > 40);
        let plain: String = strip_colors(line.trim_end_matches('\r'));
        assert!(plain.chars().count() <= 80 || unbroken, "{plain}");
    }
}

fn strip_colors(line: &str) -> String {
    let mut plain = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, rest)| rest);
    }
    plain + rest
}

#[test]
fn pages_show_what_is_mapped_beside_what_is_there() {
    let folder = made(&MadeRoot::intel());
    let document = json(&stdout(folder.path(), "doctor --pages --root host --format json -p 4711"));
    let vm = &document["vms"][0];
    assert_eq!(
        (&vm["pid"], &vm["name"], &vm["kind"]),
        (&PID.into(), &"web".into(), &"plain".into())
    );
    let mapped = &vm["mapped"];
    assert_eq!(
        (&mapped["bytes_4k"], &mapped["bytes_2m"]),
        (&(300 * 4096).into(), &(500u64 << 21).into())
    );
    assert_eq!(
        (&vm["backing"]["anon_thp"], &vm["backing"]["resident"]),
        (&(1u64 << 30).into(), &(1u64 << 30).into())
    );
    let text = String::from_utf8(stdout(folder.path(), "doctor --pages --root host")).unwrap();
    for part in
        ["web (4711), plain", "mapped in EPT/NPT", "1001.2 MiB", "99.9 %", "KVM_GET_STATS_FD"]
    {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

const NAMES: [&str; 4] = [
    "\u{1b}[2J\u{1b}]0;owned!\u{7}",
    "a\n# rm -rf /\n$(touch owned)`touch owned`'; touch owned; '",
    "\u{202e}gpj.exe\u{200b}",
    "<script>alert(1)</script>",
];

/// Names of VMs and threads, values of settings: untrusted.
#[test]
fn hostile_texts_reach_neither_the_terminal_nor_the_script() {
    for name in NAMES {
        let root = MadeRoot::intel()
            .with(
                "/proc/4711/cmdline",
                &format!(
                    "qemu-system-x86_64\0-name\0guest={name}\0-cpu\0host,kvm-pv-ipi=off,{name}\0"
                ),
            )
            .with(
                "/proc/4711/task/4713/status",
                &format!("Name:\tCPU 1/KVM{name}\nCpus_allowed_list:\t0-7\n"),
            )
            .with("/proc/sys/kernel/osrelease", &format!("6.1 {name}"))
            .with(
                "/sys/kernel/mm/transparent_hugepage/enabled",
                &format!("always madvise [never] {name}"),
            )
            .with("/sys/module/kvm_intel/parameters/enable_ipiv", "N\n")
            .with("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", &format!("{name}\n"));
        let folder = made(&root);
        for words in [
            "doctor --root host",
            "doctor --root host --fix-script",
            "doctor --pages --root host",
            "doctor --root host --format json",
            "doctor --pages --root host --format json",
        ] {
            let out = String::from_utf8(stdout(folder.path(), words)).unwrap();
            let is_hidden = |c: char| {
                (c.is_control() && c != '\n') || matches!(c, '\u{200b}' | '\u{202a}'..='\u{202e}')
            };
            assert!(!out.chars().any(is_hidden), "{words}: {out:?}");
        }
        // The script is one that a shell takes, and nothing of a name is run: it changes only what it says.
        let script = stdout(folder.path(), "doctor --root host --fix-script");
        fs::write(folder.path().join("fix.sh"), &script).unwrap();
        assert!(
            Command::new("sh")
                .args(["-n", "fix.sh"])
                .current_dir(folder.path())
                .status()
                .unwrap()
                .success()
        );
        let text = String::from_utf8(script).unwrap();
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            assert!(!line.contains("touch") && !line.contains("rm "), "{line}");
            let known =
                ["set -eu", "printf '%s\\n' '", "for file in /sys/", "  printf '%s\\n' '", "done"];
            assert!(known.iter().any(|start| line.starts_with(start)), "{line}");
        }
        assert!(
            text.contains(
                "printf '%s\\n' 'madvise' > '/sys/kernel/mm/transparent_hugepage/enabled'\n"
            ),
            "{text}"
        );
        assert!(!folder.path().join("owned").exists());
        let error =
            Program::new().command(folder.path(), "doctor --root host -p 7").output().unwrap();
        assert_eq!(
            (error.status.code(), error.stderr.iter().filter(|b| b.is_ascii_control()).count()),
            (Some(4), 1)
        );
    }
}

/// A stand-in for ssh: notes how it was called, and runs the command here.
fn with_ssh(folder: &Path, script: &str, words: &str) -> std::process::Output {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).unwrap();
    executable(&bin.join("ssh"), &format!("#!/bin/sh\n{script}\n"));
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    Program::new().command(folder, words).env("PATH", path).output().unwrap()
}

#[test]
fn a_guest_is_read_through_ssh() {
    let folder = made(&MadeRoot::intel());
    let script = r#"for word; do printf '%s\n' "$word"; done > called; for last; do :; done; exec sh -c "$last""#;
    let words = "doctor --root host --guest ssh:root@guest.example --format json";
    let output = with_ssh(folder.path(), script, words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (remote, local) = (
        json(&output.stdout),
        json(&stdout(folder.path(), "doctor --root host --guest-root / --format json")),
    );
    let of_guest = |document: &Value| -> Vec<(Value, Value)> {
        let findings = document["findings"].as_array().unwrap().clone();
        let guest = findings.into_iter().filter(|finding| finding["subject"] == "guest");
        guest.map(|finding| (finding["check"].clone(), finding["verdict"].clone())).collect()
    };
    assert_eq!(of_guest(&remote), of_guest(&local));
    assert_eq!(of_guest(&remote).len(), 10);
    assert_eq!(remote["guest"], "ssh:root@guest.example");
    let called = fs::read_to_string(folder.path().join("called")).unwrap();
    let called: Vec<&str> = called.lines().collect();
    let at = called.iter().position(|word| *word == "--").unwrap();
    assert_eq!(called[at + 1], "root@guest.example");
    assert!(
        called[at + 2].starts_with("for f in /proc/cmdline ") && called.len() == at + 3,
        "{called:?}"
    );
}

#[test]
fn a_guest_that_cannot_be_read_is_an_input_error() {
    let folder = made(&MadeRoot::intel());
    for (script, sentence) in [
        (
            "echo 'no route' >&2; echo 'root@vm: Permission denied\x1b[2J' >&2; exit 255",
            r"ssh failed: root@vm: Permission denied\u{1b}[2J",
        ),
        ("exit 255", "ssh failed: exit status: 255"),
        ("exit 1", "the command failed there: exit status: 1"),
        ("echo hello", "the guest's shell gave no answer"),
    ] {
        let output = with_ssh(folder.path(), script, "doctor --root host --guest ssh:vm");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.starts_with("vmtax: ssh:vm: ") && said.contains(sentence), "{said}");
        assert!(output.stdout.is_empty() && said.lines().count() == 1, "{said}");
    }
}

/// An answer that never ends is cut off.
#[test]
fn a_guest_that_never_ends_is_cut_off() {
    let folder = made(&MadeRoot::intel());
    let output = with_ssh(folder.path(), "exec cat /dev/zero", "doctor --root host --guest ssh:vm");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("ssh wrote more than 67108864 bytes of output"), "{said}");
}
