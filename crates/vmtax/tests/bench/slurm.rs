//! The array script of examples/bench under a real Slurm: munged, slurmctld and slurmd of the distribution, on this computer.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{matrix, name, ok, rows};

/// How long Slurm may take for anything, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

const MATRIX: &str = r#"
name = "slurm"
repeats = 2
warmup = false
categories = ["host"]
[[workload]]
name = "a"
command = ["true"]
[[workload]]
name = "b"
command = ["true"]
[[workload]]
use = "cpuid"
set = { seconds = 0.05 }
"#;

/// The daemons of a cluster of one. Dropping it ends them.
struct SlurmCluster {
    folder: PathBuf,
    daemons: Vec<Child>,
}

impl Drop for SlurmCluster {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            // slurmd ends on its own terms only when it can reach the controller.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn said(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Ports that are free. Below those that Linux gives to connections and to who asks for any: the daemons take them later.
fn ports() -> [u16; 2] {
    let first = 20_000 + (std::process::id() % 12_000) as u16;
    let free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let mut ports = (first..32_768).chain(20_000..first).filter(free);
    [(), ()].map(|()| ports.next().unwrap())
}

impl SlurmCluster {
    fn start(folder: &Path) -> SlurmCluster {
        let (host, user) = (said("hostname", &["-s"]), said("id", &["-un"]));
        let place = folder.display();
        // Everybody may look in: munge refuses a socket that some could not reach.
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.join("munge.key"), [7; 1024]).unwrap();
        fs::set_permissions(folder.join("munge.key"), Permissions::from_mode(0o400)).unwrap();
        for part in ["state", "spool"] {
            fs::create_dir(folder.join(part)).unwrap();
        }
        let [controller, node] = ports();
        let settings = format!(
            "ClusterName=vmtax\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser={user}\nSlurmdUser={user}\n\
             AuthType=auth/munge\nAuthInfo=socket={place}/munge.sock\nCredType=cred/munge\n\
             SlurmctldPort={controller}\nSlurmdPort={node}\nStateSaveLocation={place}/state\nSlurmdSpoolDir={place}/spool\n\
             SlurmctldPidFile={place}/slurmctld.pid\nSlurmdPidFile={place}/slurmd.pid\nProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/none\nMpiDefault=none\nReturnToService=2\nSelectType=select/cons_tres\n\
             SelectTypeParameters=CR_CPU\nJobAcctGatherType=jobacct_gather/none\n\
             MessageTimeout=100\nTCPTimeout=60\nBatchStartTimeout=300\n\
             NodeName={host} NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN\n\
             PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP\n"
        );
        fs::write(folder.join("slurm.conf"), settings).unwrap();
        let mut cluster = SlurmCluster { folder: folder.to_owned(), daemons: Vec::new() };
        let files = [
            "key-file=munge.key",
            "socket=munge.sock",
            "pid-file=munge.pid",
            "log-file=munge.log",
            "seed-file=munge.seed",
        ];
        let words: Vec<String> = files
            .iter()
            .filter_map(|word| word.split_once('='))
            .map(|(option, file)| format!("--{option}={place}/{file}"))
            .chain(["--foreground".to_owned()])
            .collect();
        cluster.daemon("munged", &words);
        cluster.until("munged does not answer", || {
            let mut munge = Command::new("munge");
            munge.arg("--no-input").arg(format!("--socket={place}/munge.sock"));
            munge.output().unwrap().status.success()
        });
        for daemon in ["slurmctld", "slurmd"] {
            cluster.daemon(daemon, &["-D".to_owned(), "-c".to_owned()]);
        }
        cluster.until("the node does not come up", || {
            let output = cluster.slurm("sinfo").args(["-h", "-o", "%t"]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).trim() == "idle"
        });
        cluster
    }

    fn slurm(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.folder.join("slurm.conf"));
        command
    }

    fn daemon(&mut self, program: &str, words: &[String]) {
        let log = File::create(self.folder.join(format!("{program}.txt"))).unwrap();
        // Daemons lie where a user's PATH may not lead.
        let path = format!("/usr/sbin/{program}");
        let child = self
            .slurm(&path)
            .args(words)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.daemons.push(child.unwrap_or_else(|e| panic!("{path}: {e}")));
    }

    fn until(&self, problem: &str, there: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !there() {
            assert!(Instant::now() < end, "{problem}: {}", self.logs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn logs(&self) -> String {
        let read = |program: &str| {
            fs::read_to_string(self.folder.join(format!("{program}.txt"))).unwrap_or_default()
        };
        ["munged", "slurmctld", "slurmd"].map(read).join("\n")
    }
}

#[test]
fn the_array_script_runs_under_slurm() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = SlurmCluster::start(folder.path());
    let script = format!("{}/../../examples/bench/slurm-array.sh", env!("CARGO_MANIFEST_DIR"));
    let out = folder.path().join("out");
    let output = cluster
        .slurm("sbatch")
        .args(["--wait", "--array=1-3"])
        .arg(format!("--output={}/job-%a.txt", folder.path().display()))
        .args([&script, name(&matrix(folder.path(), MATRIX)), name(&out)])
        .env("VMTAX", env!("CARGO_BIN_EXE_vmtax"))
        .output()
        .unwrap();
    let logs = || {
        let job = |n: u32| {
            fs::read_to_string(folder.path().join(format!("job-{n}.txt"))).unwrap_or_default()
        };
        format!("{output:?}\n{}\n{}", (1..=3).map(job).collect::<String>(), cluster.logs())
    };
    assert!(output.status.success(), "{}", logs());
    let parts = [1, 2, 3].map(|part| out.join(format!("part-{part}")));
    let whole = out.join("whole");
    ok(&["merge", name(&parts[0]), name(&parts[1]), name(&parts[2]), "-o", name(&whole)]);
    let found = rows(&whole);
    for (workload, metric) in [("a", "time"), ("b", "time"), ("cpuid", "time")] {
        assert_eq!(crate::row(&found, workload, metric, "host")["n"], "2", "{}", logs());
    }
}
