//! The table of workloads.
//!
//! The words of a command are separated by spaces; a word in single quotes may have spaces. In commands and files `{dir}` is the job's
//! folder, `{bind}` and `{port}` are address and port of the server, `{server}` is the address under which its clients reach it, `{agent}` is
//! the agent, `{disk}` the VM's disk, and a parameter's name in braces is its value.

use vmtax_capture::program::{
    ClientOutput, OutputRefusal, ProgramReading, builtin, dnn, fio, iperf, npb, onnx, ping, redis,
    sched, sysbench, time, wrk,
};
use vmtax_machine::kernel::Architecture;

#[derive(Clone, Copy, Debug)]
pub struct Adapter {
    /// Its name in a matrix.
    pub name: &'static str,
    pub about: &'static str,
    /// The program whose version is recorded, and its arguments for that; none for the agent's workloads.
    pub version: &'static str,
    /// Programs needed on the system under test.
    pub programs: &'static [&'static str],
    /// Parameters with default values.
    pub parameters: &'static [(&'static str, &'static str)],
    /// Files for the job's folder.
    pub files: &'static [(&'static str, &'static str)],
    /// The server, if it has one. It listens on `{bind}`.
    pub server: &'static str,
    /// Whether the server refuses a client until it has finished with the previous one; then each client gets a new server.
    pub one_client: bool,
    pub client: &'static str,
    /// Parser of the client's output; call [`Adapter::readings`], which also checks the result.
    pub(crate) parse: fn(&ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal>,
    /// The metric shown in short tables.
    pub headline: &'static str,
    /// Minimum number of processors.
    pub cpus: u32,
    /// Parameters that name files or folders, which a VM gets.
    pub brings: &'static [&'static str],
    /// Whether it uses the disk of a VM, `{disk}`.
    pub disk: bool,
    /// The architecture of the systems that have it, if not all do.
    pub only: Option<Architecture>,
}

const NONE: Adapter = Adapter {
    name: "",
    about: "",
    version: "",
    programs: &[],
    parameters: &[],
    files: &[],
    server: "",
    one_client: false,
    client: "",
    parse: builtin::parse,
    headline: "time",
    cpus: 1,
    disk: false,
    brings: &[],
    only: None,
};

const NGINX: &str = "daemon off;
master_process off;
user root;
pid {dir}/nginx.pid;
error_log stderr error;
events { worker_connections 512; }
http {
  access_log off;
  client_body_temp_path {dir}/body;
  proxy_temp_path {dir}/proxy;
  fastcgi_temp_path {dir}/fastcgi;
  uwsgi_temp_path {dir}/uwsgi;
  scgi_temp_path {dir}/scgi;
  keepalive_requests 100000000;
  server { listen {bind}:{port}; location / { return 200 \"vmtax\\n\"; } }
}
";

const REDIS: &str = "redis-server --bind {bind} --protected-mode no --port {port} --save '' --appendonly no --dir {dir}";

/// memtier_benchmark against a server of this protocol.
macro_rules! memtier {
    ($protocol:literal) => {
        concat!(
            "memtier_benchmark -s {server} -p {port} --protocol=",
            $protocol,
            " --test-time={seconds} -c {clients} -t {threads} --hide-histogram"
        )
    };
}

/// Parameters of a built-in workload that sends small messages.
const MESSAGE: &[(&str, &str)] = &[("seconds", "1"), ("size", "64")];

/// All of them. Sources of the commands: each program's manual; what is measured follows the reports on oneDNN on TDX,
/// confidential VMs (TU Munich, 2024) and nested KVM (KVM Forum 2017).
pub const ADAPTERS: &[Adapter] = &[
    Adapter {
        name: "ping",
        about: "ICMP round trips (iputils)",
        version: "ping -V",
        programs: &["ping"],
        parameters: &[("count", "200"), ("interval", "0.01"), ("address", "{server}")],
        client: "ping -n -q -c {count} -i {interval} {address}",
        parse: ping::parse,
        headline: "latency",
        ..NONE
    },
    net("tcp-latency", MESSAGE, "built in: round trip of a message by TCP, with percentiles"),
    net("udp-latency", MESSAGE, "built in: round trip of a datagram, with percentiles"),
    Adapter {
        parse: builtin::stream,
        headline: "throughput",
        ..net(
            "tcp-stream",
            &[("seconds", "1"), ("size", "65536")],
            "built in: TCP throughput at the receiver",
        )
    },
    Adapter {
        parse: builtin::stream,
        headline: "throughput",
        ..net(
            "udp-stream",
            &[("seconds", "1"), ("size", "1400")],
            "built in: UDP throughput at the receiver",
        )
    },
    Adapter {
        name: "iperf-tcp",
        about: "TCP throughput at the receiver (iperf3)",
        version: "iperf3 --version",
        programs: &["iperf3"],
        parameters: &[("seconds", "2"), ("length", "128K"), ("streams", "1")],
        server: "iperf3 -s -B {bind} -p {port}",
        one_client: true,
        client: "iperf3 -J -c {server} -p {port} -t {seconds} -l {length} -P {streams}",
        parse: iperf::tcp,
        headline: "throughput",
        ..NONE
    },
    Adapter {
        name: "iperf-udp",
        about: "UDP throughput at the receiver (iperf3)",
        version: "iperf3 --version",
        programs: &["iperf3"],
        parameters: &[("seconds", "2"), ("length", "1460"), ("rate", "0"), ("streams", "1")],
        server: "iperf3 -s -B {bind} -p {port}",
        one_client: true,
        client: "iperf3 -J -u -b {rate} -c {server} -p {port} -t {seconds} -l {length} -P {streams}",
        parse: iperf::udp,
        headline: "throughput",
        ..NONE
    },
    Adapter {
        name: "redis",
        about: "redis under redis-benchmark",
        version: "redis-server --version",
        programs: &["redis-server", "redis-benchmark"],
        parameters: &[("requests", "20000"), ("clients", "10"), ("tests", "set,get")],
        server: REDIS,
        client: "redis-benchmark -h {server} -p {port} -n {requests} -c {clients} -t {tests} --csv",
        parse: redis::parse,
        headline: "set-rate",
        ..NONE
    },
    Adapter {
        name: "redis-memtier",
        about: "redis under memtier_benchmark",
        version: "memtier_benchmark --version",
        programs: &["redis-server", "memtier_benchmark"],
        parameters: &[("seconds", "10"), ("clients", "10"), ("threads", "2")],
        server: REDIS,
        client: memtier!("redis"),
        parse: redis::memtier,
        headline: "rate",
        ..NONE
    },
    Adapter {
        name: "memcached",
        about: "memcached under memtier_benchmark",
        version: "memcached --version",
        programs: &["memcached", "memtier_benchmark"],
        parameters: &[("seconds", "10"), ("clients", "10"), ("threads", "2")],
        server: "memcached -u root -l {bind} -p {port}",
        client: memtier!("memcache_text"),
        parse: redis::memtier,
        headline: "rate",
        ..NONE
    },
    Adapter {
        name: "nginx",
        about: "nginx under wrk",
        version: "nginx -v",
        programs: &["nginx", "wrk"],
        parameters: &[("seconds", "2"), ("threads", "1"), ("connections", "10")],
        files: &[("nginx.conf", NGINX)],
        server: "nginx -e stderr -c {dir}/nginx.conf",
        client: "wrk -t {threads} -c {connections} -d {seconds}s --latency http://{server}:{port}/",
        parse: wrk::parse,
        headline: "rate",
        ..NONE
    },
    Adapter {
        name: "npb",
        about: "a program of the NAS parallel benchmarks, given by its path",
        programs: &[],
        parameters: &[("program", "ua.A.x")],
        client: "{program}",
        parse: npb::parse,
        headline: "speed",
        ..NONE
    },
    Adapter {
        name: "benchdnn",
        about: "oneDNN's benchdnn: the matrix product of the oneDNN-on-TDX report, on one processor",
        programs: &["benchdnn"],
        parameters: &[
            ("problem", "1024x4096:4096x1000_n\"Alexnet_train:FWD,ip3*1\""),
            ("driver", "matmul"),
        ],
        client: "benchdnn --{driver} --mode=P --stag=ab --wtag=ab --dtag=ab {problem}",
        parse: dnn::parse,
        headline: "time",
        ..NONE
    },
    Adapter {
        name: "onnxruntime",
        about: "inferences of a model by ONNX Runtime's onnxruntime_test, on its processors; `model` is the path of an ONNX file",
        version: "python3 -m pip show onnxruntime",
        programs: &["python3"],
        parameters: &[("model", "/usr/share/model.onnx"), ("iterations", "100")],
        client: "python3 -m onnxruntime.tools.onnxruntime_test {model} {iterations}",
        parse: onnx::parse,
        headline: "latency",
        brings: &["model"],
        ..NONE
    },
    Adapter {
        name: "schbench",
        about: "schbench: wake-up latencies",
        programs: &["schbench"],
        parameters: &[("seconds", "10"), ("messengers", "2"), ("threads", "2")],
        client: "schbench -m {messengers} -t {threads} -r {seconds}",
        parse: sched::schbench,
        headline: "wakeup-latency-p99.0",
        ..NONE
    },
    Adapter {
        name: "hackbench",
        about: "hackbench of rt-tests: messages between processes",
        programs: &["hackbench"],
        parameters: &[("groups", "1"), ("loops", "100")],
        client: "hackbench -g {groups} -l {loops}",
        parse: sched::hackbench,
        ..NONE
    },
    Adapter {
        name: "perf-messaging",
        about: "perf bench sched messaging",
        version: "perf --version",
        programs: &["perf"],
        parameters: &[("groups", "1"), ("loops", "100")],
        client: "perf bench sched messaging -g {groups} -l {loops}",
        parse: sched::perf_bench,
        ..NONE
    },
    Adapter {
        name: "sysbench-cpu",
        about: "sysbench cpu: prime numbers",
        version: "sysbench --version",
        programs: &["sysbench"],
        parameters: &[("seconds", "2"), ("threads", "1")],
        client: "sysbench cpu --time={seconds} --threads={threads} run",
        parse: sysbench::parse,
        headline: "rate",
        ..NONE
    },
    Adapter {
        name: "fio",
        about: "fio: random reads of a file in the job's folder",
        version: "fio --version",
        programs: &["fio"],
        parameters: &[("seconds", "2"), ("size", "16m"), ("pattern", "randread"), ("block", "4k")],
        client: "fio --name=vmtax --ioengine=psync --rw={pattern} --bs={block} --size={size} --runtime={seconds} --time_based --filename={dir}/fio.data --output-format=json",
        parse: fio::parse,
        headline: "read-rate",
        ..NONE
    },
    Adapter {
        name: "fio-disk",
        about: "fio: random reads of the VM's virtio disk (64 MiB, a file in the run's folder)",
        version: "fio --version",
        programs: &["fio"],
        parameters: &[
            ("seconds", "2"),
            ("pattern", "randread"),
            ("block", "4k"),
            ("engine", "psync"),
            ("depth", "1"),
        ],
        client: "fio --name=vmtax --ioengine={engine} --iodepth={depth} --direct=1 --rw={pattern} --bs={block} --size=64m --runtime={seconds} --time_based --filename={disk} --output-format=json",
        parse: fio::parse,
        headline: "read-rate",
        disk: true,
        ..NONE
    },
    Adapter {
        name: "compile",
        about: "make and gcc on a copy of a source tree, under GNU time; `tree` is the path of the source",
        version: "gcc --version",
        programs: &["sh", "cp", "rm", "time", "make", "gcc"],
        parameters: &[("tree", "/usr/src/tree"), ("jobs", "2"), ("target", "all")],
        // A VM has its tree in memory, and each run compiles all of it.
        client: "sh -c 'cp -r \"$0\" tree && command time -v make -C tree -j \"$1\" -s CC=gcc \"$2\" >/dev/null && rm -r tree' {tree} {jobs} {target}",
        parse: time::parse,
        brings: &["tree"],
        ..NONE
    },
    Adapter {
        name: "build",
        about: "a kernel build under GNU time; `tree` is the configured source",
        version: "time --version",
        programs: &["time", "make"],
        parameters: &[("tree", "/usr/src/linux"), ("jobs", "2"), ("target", "bzImage")],
        client: "time -v make -C {tree} O={dir} -j {jobs} -s {target}",
        parse: time::parse,
        ..NONE
    },
    Adapter {
        only: Some(Architecture::Amd64),
        ..own("cpuid", "built in: CPUID in a loop; in a VM each is an exit")
    },
    own("timer", "built in: wake-up latency of a thread that sleeps 50 us"),
    own(
        "wakeup",
        "built in: wake-up latency of two worker threads, as in schbench, with percentiles",
    ),
    Adapter {
        cpus: 2,
        ..own(
            "wakeup-across",
            "built in: the same, with the workers on other processors than what wakes them",
        )
    },
    Adapter { cpus: 2, ..own("ipi", "built in: two processors wake each other") },
    own(
        "matmul",
        "built in: a matrix product with access by column, as in the oneDNN-on-TDX report",
    ),
    own("touch-4k", "built in: first access to memory in 4 KiB pages"),
    own("touch-2m", "built in: first access to memory in huge pages"),
    Adapter {
        // A round takes longer.
        parameters: &[("seconds", "0.001")],
        only: Some(Architecture::Arm64),
        ..own(
            "touch-new",
            "built in: first access to memory that the VM never used, in 4 KiB pages; 8 MiB and more, which stay in use until the VM ends (accel = \"arm\")",
        )
    },
    own("loopback", "built in: round trip of a byte to a TCP server on the loopback interface"),
];

/// A built-in workload with a server.
const fn net(
    name: &'static str,
    parameters: &'static [(&'static str, &'static str)],
    about: &'static str,
) -> Adapter {
    Adapter {
        name,
        about,
        parameters,
        server: "{agent} serve {bind} {port}",
        client: "{agent} client {name} {server} {port} {seconds} {size}",
        parse: builtin::latency,
        ..NONE
    }
}

/// A built-in workload.
const fn own(name: &'static str, about: &'static str) -> Adapter {
    Adapter {
        name,
        about,
        parameters: &[("seconds", "1")],
        client: "{agent} builtin {name} {seconds}",
        ..NONE
    }
}

/// The words of a command of the table.
pub(crate) fn words(command: &str) -> Vec<&str> {
    let quoted = command.split('\'').enumerate().flat_map(|(i, part)| match i % 2 {
        0 => part.split_whitespace().collect(),
        _ => vec![part],
    });
    quoted.collect()
}

impl Adapter {
    /// The adapter of that name.
    pub fn named(name: &str) -> Option<&'static Adapter> {
        ADAPTERS.iter().find(|adapter| adapter.name == name)
    }

    /// The readings in an output. The last line must be complete: an interrupted program may have written half a number.
    pub fn readings(
        &self,
        output: &ClientOutput<'_>,
    ) -> Result<Vec<ProgramReading>, OutputRefusal> {
        let cut = |text: &str| !text.is_empty() && !text.ends_with(['\n', '}']);
        if cut(output.stdout) || cut(output.stderr) {
            return Err(OutputRefusal::missing("the end of the last line"));
        }
        (self.parse)(output)
    }

    /// Checks a matrix's value of a parameter; the error is half a sentence. If the default is a whole number, the value must be one
    /// too: many programs read 0.5 as 0, which means "forever" or "no limit".
    pub fn check(&self, parameter: &str, value: &str) -> Result<(), String> {
        let name = self.name;
        let (_, default) = self
            .parameters
            .iter()
            .find(|(known, _)| *known == parameter)
            .ok_or_else(|| format!("{name} has no parameter {parameter:?}"))?;
        let counts = |text: &str| text.parse::<u64>().is_ok_and(|number| number > 0);
        let (number, fits) = if self.is_builtin() && parameter == "seconds" {
            ("number", value.parse::<f64>().is_ok_and(|seconds| seconds > 0.0))
        } else {
            ("whole number", !counts(default) || counts(value))
        };
        if fits {
            return Ok(());
        }
        Err(format!("{name} takes a {number} above zero for {parameter}, not {value:?}"))
    }

    /// Whether it has a client and a server, which may be on different systems.
    pub fn has_ends(&self) -> bool {
        let has = |text: &str| text.contains("{server}");
        has(self.client) || self.parameters.iter().any(|(_, value)| has(value))
    }

    /// Whether the agent is all it needs.
    pub fn is_builtin(&self) -> bool {
        self.client.starts_with("{agent} ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_word_may_be_empty_or_have_spaces() {
        assert_eq!(words("sh -c 'a \"$0\" && b' {tree}"), ["sh", "-c", "a \"$0\" && b", "{tree}"]);
        assert_eq!(words("redis --save '' --dir x"), ["redis", "--save", "", "--dir", "x"]);
        assert!(ADAPTERS.iter().all(|one| one.client.matches('\'').count() % 2 == 0));
    }
}
