//! Recordings made up from a specification: text as `perf script`, ftrace or trace-cmd print it, with counts, times and names
//! that a seed varies.

use serde::Deserialize;

/// What a made-up recording holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MadeSpec {
    pub(crate) seed: u64,
    seconds: f64,
    #[serde(default = "one")]
    vcpus: u32,
    #[serde(default)]
    exit: Vec<MadeExit>,
    #[serde(default)]
    preempt: Vec<Preempt>,
    #[serde(default)]
    form: Form,
    /// Name of a vCPU's thread; `{}` is its number.
    #[serde(default = "thread")]
    thread: String,
    #[serde(default = "pid")]
    pid: u32,
    /// Its registers are encrypted: KVM prints 0 for the instruction pointer.
    #[serde(default)]
    encrypted: bool,
    /// Number of the first vCPU.
    #[serde(default)]
    first: u32,
    /// A second VM beside it, or further vCPUs of the same process.
    also: Option<Box<MadeSpec>>,
}

/// Whose text it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Form {
    #[default]
    PerfScript,
    Ftrace,
    TraceCmd,
}

fn thread() -> String {
    "CPU {}/KVM".to_owned()
}

fn pid() -> u32 {
    4000
}

impl Form {
    fn line(self, who: &str, (pid, tid): (u32, u32), cpu: u32, ns: u64, event: &str) -> String {
        let (s, frac) = (ns / 1_000_000_000, ns % 1_000_000_000);
        if self == Form::PerfScript {
            return format!("{who} {pid}/{tid} [{cpu:03}] {s}.{frac:09}: {event}");
        }
        let event = event.split_once(':').map_or(event, |(_, event)| event);
        let (name, text) = event.split_once(": ").unwrap_or((event, ""));
        match self {
            Form::Ftrace => format!(
                "{who:>16}-{tid:<7} [{cpu:03}] d..1. {s:>5}.{:06}: {name}: {text}",
                frac / 1000
            ),
            _ => {
                let name = format!("{name}:");
                format!(
                    "{who:>16}-{tid:<5} [{cpu:03}] {s:>5}.{:06}: {name:<20} {}",
                    frac / 1000,
                    trace_cmd(&name, text)
                )
            }
        }
    }
}

/// The text of an event as trace-cmd's plugins print it.
fn trace_cmd(name: &str, text: &str) -> String {
    if name != "sched_switch:" {
        return text.to_owned();
    }
    let field = |from: &str, to: &str| {
        text.split_once(from).and_then(|(_, rest)| rest.split_once(to)).map_or("", |(word, _)| word)
    };
    format!(
        "{}:{} [120] {} ==> {}:{} [120]",
        field("prev_comm=", " prev_pid"),
        field("prev_pid=", " "),
        field("prev_state=", " "),
        field("next_comm=", " next_pid"),
        field("next_pid=", " ")
    )
}

fn runnable() -> String {
    "R".to_owned()
}

fn one() -> u32 {
    1
}

/// Exits of one reason, a second and vCPU.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MadeExit {
    reason: String,
    rate: f64,
    /// Duration, from and to.
    us: [f64; 2],
    /// Lines between exit and entry; of several one is taken.
    #[serde(default)]
    events: Vec<String>,
    /// It goes to the VMM.
    #[serde(default)]
    user: bool,
    /// It halts for so long before it goes on: from and to.
    halt_us: Option<[f64; 2]>,
    #[serde(default)]
    polled: bool,
}

/// The vCPU's processor is taken.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Preempt {
    rate: f64,
    us: [f64; 2],
    by: Vec<String>,
    /// Id of the thread that takes it; otherwise one that runs no vCPU.
    tid: Option<u32>,
    /// State in which its thread leaves the processor.
    #[serde(default = "runnable")]
    state: String,
    /// The switch back is not in the recording.
    #[serde(default)]
    one_way: bool,
}

/// Numbers from a seed (splitmix64; Steele, Lea, Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn between(&mut self, [low, high]: [f64; 2]) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Time to the next of so many a second, s.
    fn gap(&mut self, rate: f64) -> f64 {
        -(1.0 - self.unit()).ln() / rate
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        let at = self.next() as usize % all.len().max(1);
        all.get(at)
    }
}

/// The text, in time order.
pub(crate) fn perf_script(spec: &MadeSpec, seed: u64) -> String {
    let mut lines: Vec<(u64, String)> = Vec::new();
    for (number, spec) in std::iter::successors(Some(spec), |spec| spec.also.as_deref()).enumerate()
    {
        for vcpu in spec.first..spec.first + spec.vcpus {
            let seed = seed.wrapping_add(number as u64) ^ u64::from(vcpu) << 32;
            vcpu_lines(spec, Random(seed), vcpu, &mut lines);
        }
    }
    lines.sort_by_key(|(ns, _)| *ns);
    let mut text = match spec.form {
        Form::PerfScript => String::new(),
        Form::Ftrace => "# tracer: nop\n#\n".to_owned(),
        Form::TraceCmd => "cpus=8\n".to_owned(),
    };
    for (_, line) in lines {
        text += &line;
        text.push('\n');
    }
    text
}

fn vcpu_lines(spec: &MadeSpec, mut random: Random, vcpu: u32, lines: &mut Vec<(u64, String)>) {
    let tid = spec.pid + 1 + vcpu;
    let cpu = spec.pid / 1000 + vcpu;
    let mut put = |at: f64, who: &str, tid: u32, event: &str| {
        let ns = (at * 1e9) as u64;
        lines.push((ns, spec.form.line(who, (spec.pid, tid), cpu, ns, event)));
    };
    let me = spec.thread.replace("{}", &vcpu.to_string());
    let mut now = 100.0 + f64::from(vcpu) * 1e-6;
    let end = now + spec.seconds;
    let mut next: Vec<f64> = spec.exit.iter().map(|e| now + random.gap(e.rate)).collect();
    next.extend(spec.preempt.iter().map(|p| now + random.gap(p.rate)));
    let [at_exit, at_entry] = if spec.encrypted { ["0x0"; 2] } else { ["0x1000", "0x1002"] };
    put(now, &me, tid, &format!("kvm:kvm_entry: vcpu {vcpu}, rip {at_exit}"));
    while let Some((at, &when)) = next.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)) {
        if when >= end {
            break;
        }
        now = now.max(when) + 2e-7;
        let exit = |reason: &str| {
            format!(
                "kvm:kvm_exit: vcpu {vcpu} reason {reason} rip {at_exit} info1 0x0 info2 0x0 intr_info 0x0 error_code 0x0"
            )
        };
        if let Some(kind) = spec.exit.get(at) {
            put(now, &me, tid, &exit(&kind.reason));
            let took = random.between(kind.us) * 1e-6;
            if let Some(event) = random.of(&kind.events).cloned() {
                put(now + took * 0.2, &me, tid, &event);
            }
            if kind.user {
                put(now + took * 0.3, &me, tid, "kvm:kvm_userspace_exit: reason KVM_EXIT_IO (2)");
            }
            let mut halted = 0.0;
            if let Some(halt) = kind.halt_us {
                halted = random.between(halt) * 1e-6;
                let how = if kind.polled { "poll" } else { "wait" };
                let wake = format!(
                    "kvm:kvm_vcpu_wakeup: {how} time {} ns, polling valid",
                    (halted * 1e9) as u64
                );
                put(now + halted + took * 0.5, &me, tid, &wake);
            }
            now += took + halted;
            next[at] = now + random.gap(kind.rate);
        } else if let Some(kind) = spec.preempt.get(at - spec.exit.len()) {
            let away = random.between(kind.us) * 1e-6;
            let by = random.of(&kind.by).cloned().unwrap_or_default();
            let reason =
                if spec.exit.iter().any(|e| e.reason.chars().any(|c| c.is_ascii_lowercase())) {
                    "interrupt"
                } else {
                    "EXTERNAL_INTERRUPT"
                };
            put(now, &me, tid, &exit(reason));
            let other = kind.tid.unwrap_or(9000 + by.len() as u32);
            put(
                now + 1e-6,
                &me,
                tid,
                &format!(
                    "sched:sched_switch: prev_comm={me} prev_pid={tid} prev_prio=120 prev_state={} ==> next_comm={by} next_pid={other} next_prio=120",
                    kind.state
                ),
            );
            if !kind.one_way {
                put(
                    now + 1e-6 + away,
                    &by,
                    other,
                    &format!(
                        "sched:sched_switch: prev_comm={by} prev_pid={other} prev_prio=120 prev_state=R ==> next_comm={me} next_pid={tid} next_prio=120"
                    ),
                );
            }
            now += 2e-6 + away;
            next[at] = now + random.gap(kind.rate);
        }
        put(now, &me, tid, &format!("kvm:kvm_entry: vcpu {vcpu}, rip {at_entry}"));
    }
}
