//! KVM's tracepoints in the kernel's own ring buffer, started and stopped around one batch.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use vmtax_guest::layout::{COUNT, SETTLE, TRACE};

use crate::channel::Attachment;
use crate::marks::WorkloadMarks;
use crate::{Result, ports, system};

const ROOT: &str = "/sys/kernel/tracing";
/// Systems whose tracepoints are recorded, and single ones.
const EVENTS: [&str; 2] = ["kvm", "sched/sched_switch"];

/// KVM's page faults say here at which level they map. Recorded for operations about memory alone: it takes room and time.
const LEVELS: &str = "kvmmmu/kvm_mmu_spte_requested";

/// The tracepoint of exits.
const EXITS: &str = "events/kvm/kvm_exit";

/// The system of the probes that an order brings.
const PROBES: &str = "vmtax";

/// Starts and stops recording.
pub(crate) enum Tracer {
    Here(fs::File),
    /// In the kernel of the VMM outside.
    Outside,
    /// The emulator records what the machine executes, and nobody records exits.
    Emulator(WorkloadMarks),
    Off,
}

/// Where the tracepoints are.
pub(crate) fn mount() -> Result<()> {
    system::mount("tracefs", ROOT)
}

fn set(file: &str, value: &str) -> Result<()> {
    fs::write(format!("{ROOT}/{file}"), value)
        .map_err(|e| format!("{ROOT}/{file}: writing {value:?}: {e}"))
}

/// Makes the buffer: before the machine's state is saved, for it takes long.
pub(crate) fn prepare(buffer_kib: u32) -> Result<()> {
    set("tracing_on", "0")?;
    set("trace_clock", ports::TRACE_CLOCK)?;
    // What is recorded first stays: a full buffer shows as lost events at the end.
    set("options/overwrite", "0")?;
    set("buffer_size_kb", &buffer_kib.to_string())
}

/// Makes these probes known to the kernel; those that it refused, with its answer.
pub(crate) fn define(probes: &[String]) -> Vec<String> {
    probes.iter().filter_map(|probe| add(probe).err()).collect()
}

/// Adds a probe to those that are there.
fn add(probe: &str) -> Result<()> {
    let path = format!("{ROOT}/kprobe_events");
    let written = fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(probe.as_bytes()));
    written.map_err(|e| format!("{path}: writing {probe:?}: {e}"))
}

impl Tracer {
    /// Switches the tracepoints on, and the probes if there are any; [`Tracer::record`] then starts and stops.
    pub(crate) fn arm(has_probes: bool, with_levels: bool) -> Result<Tracer> {
        for event in EVENTS {
            set(&format!("events/{event}/enable"), "1")?;
        }
        if with_levels {
            set(&format!("events/{LEVELS}/enable"), "1")?;
        }
        if has_probes {
            set(&format!("events/{PROBES}/enable"), "1")?;
        }
        let switch = fs::OpenOptions::new()
            .write(true)
            .open(format!("{ROOT}/tracing_on"))
            .map_err(|e| format!("{ROOT}/tracing_on: {e}"))?;
        Ok(Tracer::Here(switch))
    }

    /// Switches the tracepoints off again: KVM's path is as short as before.
    pub(crate) fn disarm(self) -> Result<()> {
        self.record(false);
        EVENTS.iter().try_for_each(|event| set(&format!("events/{event}/enable"), "0"))
    }

    /// Waits for so much time without clock ticks, in this kernel and in the one outside.
    pub(crate) fn settle(&self, need: Duration) {
        // First for the kernel outside, so that it knows its ticks: to find one anew takes as long as ours are apart.
        let outside = || {
            if let Tracer::Outside = self {
                ports::out32(SETTLE, u32::try_from(need.as_nanos()).unwrap_or(u32::MAX));
            }
        };
        outside();
        system::away_from_tick(need);
        outside();
    }

    /// Has the VMM outside start or stop counting page faults.
    pub(crate) fn count(&self, on: bool) {
        if let Tracer::Outside = self {
            ports::out8(COUNT, u8::from(on));
        }
    }

    /// Starts or stops recording.
    pub(crate) fn record(&self, on: bool) {
        match self {
            Tracer::Here(switch) => {
                // Cannot fail once it is open; a recording without events would be noticed.
                let _ = (&*switch).write_all(if on { b"1" } else { b"0" });
            }
            Tracer::Outside => ports::out8(TRACE, u8::from(on)),
            Tracer::Emulator(marks) => marks.record(on),
            Tracer::Off => {}
        }
    }
}

/// The idle time of the processor by its tracepoint, in a buffer of its own.
pub(crate) struct IdleTrace {
    pipe: fs::File,
    rest: Vec<u8>,
    began: Option<u64>,
    sum: u64,
}

const IDLE_INSTANCE: &str = "instances/vmtax-idle";

impl IdleTrace {
    pub(crate) fn start() -> Result<IdleTrace> {
        let folder = format!("{ROOT}/{IDLE_INSTANCE}");
        fs::create_dir_all(&folder).map_err(|e| format!("{folder}: {e}"))?;
        for (file, value) in [
            ("trace_clock", ports::TRACE_CLOCK),
            // Times as the clock has them; in other lines a clock of nanoseconds is rounded to microseconds.
            ("options/raw", "1"),
            ("events/power/cpu_idle/enable", "1"),
            ("trace", ""),
            ("tracing_on", "1"),
        ] {
            set(&format!("{IDLE_INSTANCE}/{file}"), value)?;
        }
        let path = format!("{folder}/trace_pipe");
        let pipe = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        let pipe = pipe.map_err(|e| format!("{path}: {e}"))?;
        Ok(IdleTrace { pipe, rest: Vec::new(), began: None, sum: 0 })
    }

    /// How long the processor was idle since the start, ns of a TSC of 1 GHz.
    pub(crate) fn idle_time(&mut self) -> Result<u64> {
        let mut buffer = [0; 4096];
        loop {
            match self.pipe.read(&mut buffer) {
                Ok(0) => break,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(format!("{IDLE_INSTANCE}/trace_pipe: {error}")),
                Ok(length) => self.rest.extend_from_slice(&buffer[..length]),
            }
        }
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        self.add(&String::from_utf8_lossy(&lines))?;
        Ok(self.sum)
    }

    /// Adds lines `0 0 9011100 type: 338`: thread, processor, time. The processor goes idle and ends it in turn, busy at first.
    fn add(&mut self, text: &str) -> Result<()> {
        for line in text.lines() {
            if line.contains("LOST") {
                return Err("events of cpu_idle were lost".to_owned());
            }
            let time = line.split(' ').nth(2).and_then(|word| word.parse().ok());
            let time: u64 =
                time.ok_or_else(|| format!("an event of cpu_idle without time: {line}"))?;
            match self.began.take() {
                None => self.began = Some(time),
                Some(began) => self.sum += time.saturating_sub(began),
            }
        }
        Ok(())
    }
}

impl Drop for IdleTrace {
    fn drop(&mut self) {
        // Without it the next operations have one tracepoint more.
        let _ = set(&format!("{IDLE_INSTANCE}/events/power/cpu_idle/enable"), "0");
    }
}

/// All switches, and what wakes this thread, each with the kernel's stack, in a buffer of their own.
pub(crate) struct SwitchTrace {
    folder: String,
    thread: i32,
}

/// The instance of its buffer, which stays for the next one.
const INSTANCE: &str = "instances/vmtax";
/// Functions between a switch and what waits.
const OF_WAITING: [&str; 8] = [
    "__schedule",
    "schedule",
    "schedule_timeout",
    "wait_for_completion",
    "__wait_for_common",
    "do_wait_for_common",
    "wait_for_common",
    "wait_for_completion_killable",
];
/// Functions of the recorder.
const OF_RECORDING: [&str; 3] = ["trace_event_", "__traceiter_", "__bpf_trace_"];
/// Functions of a system call's or a thread's entry: what follows them is not of the wait.
const OF_ENTRY: [&str; 8] = [
    "__x64_sys_",
    "__arm64_sys_",
    "__do_sys_",
    "do_syscall_",
    "entry_SYSCALL",
    "x64_sys_call",
    "task_work_run",
    "exit_to_user",
];
/// Where a kernel thread begins.
const THREAD: &str = "kthread";
/// Functions of an interrupt: what they wake was not waiting for the thread that they came to.
const OF_INTERRUPTS: [&str; 6] =
    ["__do_softirq", "handle_softirqs", "rcu_do_batch", "__sysvec", "asm_sysvec", "gic_handle_irq"];
/// Callers of a thread that are kept.
const CALLERS_MOST: usize = 12;
/// What stands between the functions of two threads, of which one waits for the other.
const OTHER_THREAD: &str = "[another thread]";

impl SwitchTrace {
    pub(crate) fn start() -> Result<SwitchTrace> {
        // SAFETY: asks for this thread's number.
        let thread = unsafe { libc::gettid() };
        let switches = SwitchTrace { folder: format!("{ROOT}/{INSTANCE}"), thread };
        fs::create_dir_all(&switches.folder).map_err(|e| format!("{}: {e}", switches.folder))?;
        for (file, value) in [
            ("tracing_on", "0"),
            ("trace_clock", ports::TRACE_CLOCK),
            ("buffer_size_kb", "8192"),
            ("options/stacktrace", "1"),
            ("events/sched/sched_switch/enable", "1"),
            ("events/sched/sched_waking/filter", &format!("pid == {thread}")),
            ("events/sched/sched_waking/enable", "1"),
            ("trace", ""),
            ("tracing_on", "1"),
        ] {
            switches.set(file, value)?;
        }
        Ok(switches)
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        set(&format!("{INSTANCE}/{file}"), value)
    }

    /// Ends; each wait: when it began and ended, by the TSC (arm64: the generic timer, to the microsecond), and the function that waited with its callers.
    pub(crate) fn finish(self) -> Result<Vec<(u64, u64, String)>> {
        self.set("tracing_on", "0")?;
        for event in ["sched_switch", "sched_waking"] {
            self.set(&format!("events/sched/{event}/enable"), "0")?;
        }
        let ahead = ports::trace_clock_ahead();
        let text = read(&format!("{INSTANCE}/trace"))?;
        let mut found = waits(&String::from_utf8_lossy(&text), &self.thread.to_string());
        for (from, until, _) in &mut found {
            (*from, *until) = (from.wrapping_add_signed(-ahead), until.wrapping_add_signed(-ahead));
        }
        Ok(found)
    }
}

/// An event with its stack.
struct Scheduled<'a> {
    time: u64,
    /// The thread in whose time it happens.
    thread: &'a str,
    what: &'a str,
    stack: Vec<&'a str>,
}

/// A time of a buffer's text: a count, or seconds with six decimals, which become nanoseconds.
fn time_of(word: &str) -> Option<u64> {
    let Some((seconds, micros)) = word.split_once('.') else { return word.parse().ok() };
    let (seconds, micros): (u64, u64) = (seconds.parse().ok()?, micros.parse().ok()?);
    Some((seconds * 1_000_000 + micros) * 1000)
}

/// The events of a buffer's text.
fn scheduled(text: &str) -> Vec<Scheduled<'_>> {
    let mut events: Vec<Scheduled<'_>> = Vec::new();
    for line in text.lines() {
        if let Some(function) = line.strip_prefix(" => ") {
            if let Some(event) = events.last_mut() {
                event.stack.push(function.split('+').next().unwrap_or(function).trim());
            }
            continue;
        }
        let Some((before, what)) = line.split_once(": sched_") else { continue };
        let parts = before.split_once(" [").and_then(|(thread, rest)| {
            let thread = thread.trim_end().rsplit('-').next()?;
            Some((thread, time_of(rest.rsplit(' ').next()?)?))
        });
        let Some((thread, time)) = parts else { continue };
        events.push(Scheduled { time, thread, what, stack: Vec::new() });
    }
    events
}

/// A wait of a thread.
struct Blocked<'a, 'b> {
    thread: &'a str,
    from: u64,
    until: u64,
    stack: &'b [&'a str],
}

/// All waits that ended. A thread that could go on and was not let does not wait.
fn blocked<'a, 'b>(events: &'b [Scheduled<'a>]) -> Vec<Blocked<'a, 'b>> {
    let mut open = std::collections::BTreeMap::new();
    let mut ended = Vec::new();
    for event in events.iter().filter(|event| event.what.starts_with("switch: ")) {
        let field = |name: &str| {
            event.what.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        };
        let (Some(before), Some(after)) = (field("prev_pid"), field("next_pid")) else { continue };
        if !field("prev_state").is_some_and(|state| state.starts_with('R')) {
            open.insert(before, event);
        }
        if let Some(began) = open.remove(after) {
            let (from, until) = (began.time, event.time);
            ended.push(Blocked { thread: after, from, until, stack: &began.stack });
        }
    }
    ended
}

/// The waits of a thread, from events as text. Where another thread woke it that had waited meanwhile, it is that one's wait.
fn waits(text: &str, thread: &str) -> Vec<(u64, u64, String)> {
    let events = scheduled(text);
    let blocked = blocked(&events);
    let is_of_interrupt = |event: &&Scheduled<'_>| {
        let is_one = |name: &&str| OF_INTERRUPTS.iter().any(|start| name.starts_with(start));
        event.stack.iter().any(is_one)
    };
    let place_of = |wait: &Blocked<'_, '_>| {
        let within = |time: u64| (wait.from..=wait.until).contains(&time);
        let wakes =
            |event: &&Scheduled<'_>| event.what.starts_with("waking: ") && within(event.time);
        let waker = events.iter().rfind(wakes);
        let other = waker.filter(|waker| !is_of_interrupt(waker)).and_then(|waker| {
            let of_waker = blocked.iter().filter(|other| {
                other.thread == waker.thread && within(other.from) && within(other.until)
            });
            of_waker.max_by_key(|other| other.until - other.from)
        });
        // A thread whose main loop waits is one that waited for work.
        let of_other = other.map(|other| functions(other.stack)).unwrap_or_default();
        let mut functions = if of_other.len() > 1 { of_other } else { Vec::new() };
        if !functions.is_empty() {
            functions.push(OTHER_THREAD);
        }
        functions.extend(self::functions(wait.stack));
        if functions.is_empty() { "unknown".to_owned() } else { functions.join(" < ") }
    };
    let own = blocked.iter().filter(|wait| wait.thread == thread);
    own.map(|wait| (wait.from, wait.until, place_of(wait))).collect()
}

/// The function that waits, and its callers up to the system call or the thread's beginning.
fn functions<'a>(stack: &[&'a str]) -> Vec<&'a str> {
    let is_of_entry =
        |name: &str| name == THREAD || OF_ENTRY.iter().any(|start| name.starts_with(start));
    let is_of_waiting = |name: &&&str| {
        OF_WAITING.contains(*name) || OF_RECORDING.iter().any(|start| name.starts_with(start))
    };
    let from = stack.iter().take_while(is_of_waiting).count();
    let callers = stack[from..].iter().copied().take_while(|name| !is_of_entry(name));
    callers.take(CALLERS_MOST).collect()
}

/// Has the kernel count exits by their reason, those too for which the buffer has no room. Needs CONFIG_HIST_TRIGGERS.
pub(crate) fn count_exits() -> Result<()> {
    set(&format!("{EXITS}/trigger"), "hist:keys=exit_reason")
}

/// The counts since then: reason and number.
pub(crate) fn counted_exits() -> Result<Vec<(u32, u64)>> {
    let path = format!("{EXITS}/hist");
    let text = String::from_utf8_lossy(&read(&path)?).into_owned();
    // `{ exit_reason:        114 } hitcount:       1000`
    let count = |line: &str| {
        let (reason, hits) = line.strip_prefix("{ exit_reason:")?.split_once("} hitcount:")?;
        Some((reason.trim().parse().ok()?, hits.trim().parse().ok()?))
    };
    Ok(text.lines().filter_map(count).collect())
}

/// Forgets what was recorded, and how much was lost.
pub(crate) fn clear() -> Result<()> {
    set("trace", "")
}

/// All that a `trace.dat` is made of, as the kernel gives it.
pub(crate) fn collect() -> Result<Vec<Attachment>> {
    let mut files = Vec::new();
    let mut add = |name: &str, bytes: Vec<u8>| {
        files.push(Attachment { name: format!("trace/{name}"), bytes })
    };
    add("header_page", read("events/header_page")?);
    add("header_event", read("events/header_event")?);
    add("saved_cmdlines", read("saved_cmdlines")?);
    let mut formats = Vec::new();
    for system in ["kvm", "kvmmmu", "sched", PROBES] {
        let folder = match fs::read_dir(format!("{ROOT}/events/{system}")) {
            Err(_) if system == PROBES || system == "kvmmmu" => continue,
            folder => folder.map_err(|e| format!("{ROOT}/events/{system}: {e}"))?,
        };
        let mut names: Vec<String> = folder
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| match system {
                "sched" => name == "sched_switch",
                "kvmmmu" => LEVELS.ends_with(name.as_str()),
                _ => true,
            })
            .collect();
        names.sort();
        for name in names {
            if let Ok(text) = read(&format!("events/{system}/{name}/format")) {
                formats.push((system.to_owned(), String::from_utf8_lossy(&text).into_owned()));
            }
        }
    }
    add("formats", vmtax_guest::order::encode(&formats));
    let mut stats = Vec::new();
    for cpu in 0..system::processors() {
        add(&format!("cpu{cpu}"), pages(cpu)?);
        stats.extend(read(&format!("per_cpu/cpu{cpu}/stats"))?);
    }
    add("trace_clock", read("trace_clock")?);
    add("stats", stats);
    Ok(files)
}

/// A whole file of tracefs. Some of them give everything to the first read and nothing to a second one.
fn read(file: &str) -> Result<Vec<u8>> {
    let path = format!("{ROOT}/{file}");
    let problem = |e| format!("{path}: {e}");
    let mut file = fs::File::open(&path).map_err(problem)?;
    let mut buffer = vec![0; 64 << 10];
    let mut bytes = Vec::new();
    loop {
        match file.read(&mut buffer).map_err(problem)? {
            0 => return Ok(bytes),
            length => bytes.extend_from_slice(&buffer[..length]),
        }
    }
}

/// The raw pages of a CPU's buffer.
fn pages(cpu: usize) -> Result<Vec<u8>> {
    let path = format!("{ROOT}/per_cpu/cpu{cpu}/trace_pipe_raw");
    let mut file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&path)
        .map_err(|e| format!("{path}: {e}"))?;
    let mut bytes = Vec::new();
    let mut page = [0; 4096];
    loop {
        match file.read(&mut page) {
            Ok(0) => return Ok(bytes),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(bytes),
            Err(error) => return Err(format!("{path}: {error}")),
            Ok(length) => {
                page[length..].fill(0);
                bytes.extend_from_slice(&page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the form of Debian's Linux 6.1: KVM_CREATE_VM waits for a thread that waits for a grace period; a preemption; a wait for a grace period that an
    /// interrupt ends in the time of another thread; a wait whose end was not recorded.
    const SWITCHES: &str = "# tracer: nop
#
     vmtax-guest-1       [000] d..2. 9000100: sched_switch: prev_comm=vmtax guest prev_pid=1 prev_prio=120 prev_state=D ==> next_comm=kvm-nx-lpage-re next_pid=70 next_prio=120
     vmtax-guest-1       [000] d..2. 9000110: <stack trace>
 => trace_event_raw_event_sched_switch
 => __traceiter_sched_switch
 => __schedule
 => schedule
 => schedule_timeout
 => wait_for_completion
 => kvm_vm_create_worker_thread
 => kvm_arch_post_init_vm
 => kvm_dev_ioctl+0x12/0x30
 => __x64_sys_ioctl
 => do_syscall_64
 kvm-nx-lpage-re-70      [000] d..2. 9000300: sched_switch: prev_comm=kvm-nx-lpage-re prev_pid=70 prev_prio=120 prev_state=D ==> next_comm=swapper/0 next_pid=0 next_prio=120
 kvm-nx-lpage-re-70      [000] d..2. 9000310: <stack trace>
 => __schedule
 => schedule
 => schedule_timeout
 => __wait_for_common
 => __wait_rcu_gp
 => synchronize_rcu
 => rcu_sync_enter
 => percpu_down_write
 => cgroup_attach_task_all
 => kvm_vm_worker_thread
 => kthread
 => ret_from_fork
          <idle>-0       [000] d..2. 9011100: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=kvm-nx-lpage-re next_pid=70 next_prio=120
          <idle>-0       [000] d..2. 9011110: <stack trace>
 => __schedule
 => schedule_idle
 kvm-nx-lpage-re-70      [000] d..2. 9011200: sched_waking: comm=vmtax guest pid=1 prio=120 target_cpu=000
 kvm-nx-lpage-re-70      [000] d..2. 9011210: <stack trace>
 => try_to_wake_up
 => complete
 => kvm_vm_worker_thread
 => kthread
 kvm-nx-lpage-re-70      [000] d..2. 9011300: sched_switch: prev_comm=kvm-nx-lpage-re prev_pid=70 prev_prio=120 prev_state=S ==> next_comm=vmtax guest next_pid=1 next_prio=120
     vmtax-guest-1       [000] d..2. 9020000: sched_switch: prev_comm=vmtax guest prev_pid=1 prev_prio=120 prev_state=R+ ==> next_comm=kworker/0:1 next_pid=11 next_prio=120
 => __schedule
   kworker/0:1-11        [000] d..2. 9021000: sched_switch: prev_comm=kworker/0:1 prev_pid=11 prev_prio=120 prev_state=I ==> next_comm=vmtax guest next_pid=1 next_prio=120
     vmtax-guest-1       [000] d..2. 9030000: sched_switch: prev_comm=vmtax guest prev_pid=1 prev_prio=120 prev_state=D ==> next_comm=swapper/0 next_pid=0 next_prio=120
 => __schedule
 => schedule
 => __synchronize_srcu
 => kvm_swap_active_memslots
 => __x64_sys_ioctl
          <idle>-0       [000] d..2. 9030100: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=kworker/0:1 next_pid=11 next_prio=120
   kworker/0:1-11        [000] d..2. 9030200: sched_switch: prev_comm=kworker/0:1 prev_pid=11 prev_prio=120 prev_state=I ==> next_comm=swapper/0 next_pid=0 next_prio=120
 => __schedule
 => worker_thread
          <idle>-0       [000] d..2. 9035000: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=kworker/0:1 next_pid=11 next_prio=120
   kworker/0:1-11        [000] d..2. 9035050: sched_waking: comm=vmtax guest pid=1 prio=120 target_cpu=000
 => complete
 => srcu_invoke_callbacks
 => process_one_work
 => worker_thread
 => kthread
   kworker/0:1-11        [000] d..2. 9035100: sched_switch: prev_comm=kworker/0:1 prev_pid=11 prev_prio=120 prev_state=I ==> next_comm=vmtax guest next_pid=1 next_prio=120
     vmtax-guest-1       [000] d..2. 9040000: sched_switch: prev_comm=vmtax guest prev_pid=1 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120
";

    #[test]
    fn a_wait_has_the_function_that_waits_and_its_callers() {
        let create = "__wait_rcu_gp < synchronize_rcu < rcu_sync_enter < percpu_down_write < cgroup_attach_task_all < kvm_vm_worker_thread < [another thread] < \
                      kvm_vm_create_worker_thread < kvm_arch_post_init_vm < kvm_dev_ioctl";
        let slot = "__synchronize_srcu < kvm_swap_active_memslots";
        assert_eq!(
            waits(SWITCHES, "1"),
            [(9_000_100, 9_011_300, create.to_owned()), (9_030_000, 9_035_100, slot.to_owned())]
        );
        assert_eq!(waits("CPU:0 [LOST 12 EVENTS]\n", "1"), []);
        // Of arm64, whose clock is written in seconds.
        let seconds = SWITCHES.replace(": sched_", ".000007: sched_");
        let waits = waits(&seconds, "1");
        assert_eq!(waits[1], (9_030_000_000_007_000, 9_035_100_000_007_000, slot.to_owned()));
    }
}
