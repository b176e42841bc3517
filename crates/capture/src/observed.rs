//! Texts of ordinary tools -> [`Observed`]: top, mpstat, sar, iostat and vmstat, `cpu.stat` of a cgroup, `/proc/interrupts`, the name of a clock, and
//! lines of logs.
//!
//! ```text
//! text ──steal, host, idle, devices, delays, timed──> what tools show
//!      ──log, boot, stuck──────────────────────────> what logs say
//!      ──named─────────────────────────────────────> known costs in words, where nothing else is read
//! ```
//! Each has a reader that takes what it knows and leaves the rest: a post has several of them, and words between. Left out on purpose: what
//! such a text does not prove. A tool that shows nothing is named as before, and refused.

mod boot;
mod delays;
mod devices;
mod host;
mod idle;
mod log;
mod migration;
mod named;
mod steal;
mod stuck;
mod timed;

use vmtax_events::observed::Observed;

/// Lines that are read, and bytes of each.
const MOST_LINES: usize = 100_000;
const LONGEST: usize = 4096;
/// Columns of a table.
const MOST_COLUMNS: usize = 512;

/// What a tool's text shows; `None` if it is no such text.
type ObservedReader = fn(&str) -> Option<Vec<Observed>>;

/// What a text shows, and the tool that it is of; `None` if no tool is known by it.
pub fn read(text: &str) -> Option<(&'static str, Vec<Observed>)> {
    let readers: [(&str, ObservedReader); 34] = [
        ("top", steal::top),
        ("table of processor times", steal::tables),
        ("cpu.stat", host::quota),
        ("iostat", host::disks),
        ("ps", host::processors),
        ("/proc/interrupts", devices::interrupts),
        ("clock", devices::clock),
        ("threads", host::threads),
        ("log", log::messages),
        ("/proc/stat", steal::proc_stat),
        ("times of functions", timed::functions),
        ("vulnerabilities", host::mitigations),
        ("interrupt lines", devices::interrupt_lines),
        ("numastat", host::nodes),
        ("perf sched latency", delays::latency),
        ("perf sched timehist", delays::history),
        ("/proc/PID/sched", delays::sched),
        ("virsh domstats", delays::domstats),
        ("pidstat", delays::pidstat),
        ("perf lock", delays::locks),
        ("mpstat of a host", host::kernel),
        ("ethtool", devices::offloads),
        ("mount", log::mounts),
        ("Get-NetAdapterRsc", log::coalescing),
        ("log of a boot", log::boot),
        ("log of a boot", boot::gaps),
        ("stack of a log", stuck::functions),
        ("load inside and outside", idle::inside),
        ("kvm_halt_poll_ns", idle::polls),
        ("counter of stolen time", steal::falling),
        ("info migrate", migration::behind),
        ("info irq", devices::info_irq),
        ("selftest of KVM", timed::selftest),
        ("words about steal", steal::in_words),
    ];
    let mut all = Vec::new();
    let mut tool = None;
    for (name, reader) in readers {
        if let Some(found) = reader(text) {
            tool.get_or_insert(name);
            all.extend(found);
        }
    }
    // Where vCPUs' threads are shown, the text is of their host: steal is what it lost itself.
    all.sort_by_key(|one| !matches!(one, Observed::Vcpus(..)));
    // A counter that falls shows no share either.
    if all.contains(&Observed::StealFalls) {
        all.retain(|one| !matches!(one, Observed::Steal(_)));
    }
    Some((tool?, all))
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().take(MOST_LINES).filter(|line| line.len() <= LONGEST).map(str::trim)
}

/// Larger numbers are none that a tool prints, and their sums would have no end.
const LARGEST: f64 = 1e15;

/// A number with a point or a comma, and a sign of per cent or none.
fn number(word: &str) -> Option<f64> {
    let word = word.trim_end_matches('%').replace(',', ".");
    word.parse::<f64>().ok().filter(|value| (0.0..LARGEST).contains(value))
}

/// A percentage as a part.
fn part(word: &str) -> Option<f64> {
    number(word).filter(|value| *value <= 100.0).map(|value| value / 100.0)
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// What a text names in words that is a known cost: the last resort, where nothing else is read.
pub fn named_costs(text: &str) -> Vec<Observed> {
    named::costs(text)
}

#[cfg(test)]
mod tests {
    use vmtax_events::observed::{
        DeviceClock, HostMitigation, KernelThread, LogMessage, ShortName, TimedFunction,
    };

    use super::*;

    fn all(text: &str) -> Vec<Observed> {
        read(text).map(|(_, found)| found).unwrap_or_default()
    }

    /// Texts as procps 2.8, 3.3 and 4.0, sysstat 11 and 12 print them.
    #[test]
    fn tools_show_what_was_stolen() {
        for (text, steal) in [
            (
                "Cpu(s): 12.0%us,  3.0%sy,  0.0%ni, 45.0%id,  0.0%wa,  0.0%hi,  0.0%si, 40.0%st\n",
                0.4,
            ),
            (
                "%Cpu(s):  1.0 us,  0.3 sy,  0.0 ni, 58.5 id,  0.0 wa,  0.0 hi,  0.0 si, 40.2 st\n",
                0.402,
            ),
            (
                "%Cpu(s):  1,0 us,  0,3 sy,  0,0 ni, 98,7 id,  0,0 wa,  0,0 hi,  0,0 si,  0,0 st\n",
                0.0,
            ),
            (
                "10:00:00 PM  CPU    %usr   %nice    %sys %iowait    %irq   %soft  %steal  %guest  %gnice   %idle\n\
                 10:00:01 PM  all    5.00    0.00    1.00    0.00    0.00    0.00   25.00    0.00    0.00   69.00\n\
                 10:00:01 PM    0   50.00    0.00    1.00    0.00    0.00    0.00    0.00    0.00    0.00   49.00\n",
                0.25,
            ),
            (
                "avg-cpu:  %user   %nice %system %iowait  %steal   %idle\n           5.00    0.00    1.00    0.00   30.00   64.00\n",
                0.3,
            ),
        ] {
            assert_eq!(all(text), [Observed::Steal(steal)], "{text}");
        }
    }

    #[test]
    fn steal_is_read_in_words() {
        for (text, share) in [
            ("`top` showed **95% steal (`st`)** with 1-min load ~38\n", 0.95),
            ("CPU steal is 35 % most of the day.\n", 0.35),
            ("steal time of 12.5%\n", 0.125),
        ] {
            assert_eq!(all(text), [Observed::Steal(share)], "{text}");
        }
        for none in [
            "If steal is above 10% you should talk to your provider.\n",
            "steal 3\u{2013}24%\n",
            "95% idle, no steal\n",
            "they steal 5 % of it\n",
        ] {
            assert_eq!(all(none), [], "{none}");
        }
    }

    #[test]
    fn vcpus_of_a_vm_on_one_processor() {
        let head = "PID TID RTPRIO PRI PSR COMMAND\n";
        let row = |tid: u32, cpu: u32, vcpu: u32| format!("22 {tid} - 19 {cpu} CPU {vcpu}/KVM\n");
        let vm = |cpus: [u32; 3]| {
            let rows = (0..).zip(cpus).map(|(at, cpu)| row(70 + at, cpu, at));
            format!("{head}22 22 - 19 9 qemu-system-x86\n{}", rows.collect::<String>())
        };
        let found = Observed::OneProcessor { vcpus: 3, processor: 9 };
        assert_eq!(all(&vm([9, 9, 9])), [found]);
        for none in [vm([9, 9, 10]), format!("{head}{}", row(70, 9, 0)), row(70, 9, 0)] {
            assert_eq!(all(&none), [], "{none}");
        }
    }

    #[test]
    fn the_disk_whose_requests_wait_is_found() {
        let head = "Device:  r/s  w/s  await r_await w_await svctm %util\n";
        let disk = |name: &str, busy: f64, await_ms: f64| Observed::Disk {
            name: ShortName::new(name).unwrap(),
            busy,
            await_ms,
        };
        let rows = "sda 0.7 0 0.00 0.00 0.00 0.0 0.00\nsdf 0 881 1849.44 0 1849.44 1.1 100.13\ndm-1 0 1198 2308.0 0 2308.0 0.8 100.13\n";
        assert_eq!(all(&format!("{head}{rows}")), [disk("sdf", 1.0, 1849.44)]);
        // Of three reports the first is of the time since the boot.
        let report = |wait: f64, busy: f64| format!("{head}vda 1 1 {wait} 9 9 1 {busy}\n\n");
        let three = format!("{}{}{}", report(9.0, 90.0), report(2.0, 10.0), report(4.0, 30.0));
        assert_eq!(all(&three), [disk("vda", 0.2, 3.0)]);
        // Requests of each kind have their own wait, and some that wait are few.
        let kinds =
            "Device r/s r_await w/s w_await f/s f_await %util\nnvme0n1 1 25 1000 0.3 50 90 99\n";
        let [Observed::Disk { await_ms, .. }] = all(kinds)[..] else { panic!("a disk") };
        assert!((await_ms - 4825.0 / 1051.0).abs() < 1e-9, "{await_ms}");
        let others = format!("{head}dm-0 1 1 9 9 9 1 90\nsr0 1 1 9 9 9 1 90\n");
        for none in ["Device r/s w/s\nvda 1 2\n", "vda 1 1 9 9 9 1 90\n", head, &others] {
            assert_eq!(all(none), [], "{none}");
        }
    }

    #[test]
    fn a_counter_that_falls_shows_no_share() {
        let column = "steal column of /proc/stat, per second:\n-5433\n-8812\n-120\n12\n";
        assert_eq!(all(column), [Observed::StealFalls]);
        let top = "Cpu(s):  0.0%us,  0.0%sy,30100.0%id, 0.0%si,-1253874204672.0%st\n";
        assert_eq!(all(top), [Observed::StealFalls]);
        let rounded =
            "%Cpu(s): 10 us, 2 sy, 43 id, -0.1 st\n%Cpu(s): 10 us, 2 sy, 43 id, 44.0 st\n";
        assert_eq!(all(rounded), [Observed::Steal(0.44)]);
        assert_eq!(all("CPU test: of id, --fast\n"), []);
        let twice = "cpu  10 0 10 100 0 0 0 400 0 0\ncpu0 10 0 10 100 0 0 0 400 0 0\ncpu  20 0 10 190 0 0 0 300 0 0\ncpu0 20 0 10 190 0 0 0 300 0 0\n";
        assert_eq!(all(twice), [Observed::StealFalls]);
        for none in ["idle column:\n-5433\n-8812\n-120\n", "steal:\n5\n6\n-1\n7\n"] {
            assert_eq!(all(none), [], "{none}");
        }
    }

    #[test]
    fn numbers_without_bounds_are_none() {
        let row = "0 0 0 1e308 1e308 0\n";
        assert_eq!(all(&format!("r b swpd si so st\n{}", row.repeat(4))), [Observed::Steal(0.0)]);
    }

    #[test]
    fn vmstat_shows_swapping_and_steal() {
        let text = "procs -----------memory---------- ---swap-- -----io---- -system-- ------cpu-----\n \
             r  b   swpd   free   buff  cache   si   so    bi    bo   in   cs us sy id wa st\n \
             1  0      0  10000    100   5000    9    9     1     2   30   40  1  1 98  0  0\n \
             1  0   4096  10000    100   5000  100   50     1     2   30   40  1  1 88  0 10\n";
        assert_eq!(
            all(text),
            [Observed::Steal(0.05), Observed::Swapping { out: 50.0, back: 100.0 }]
        );
    }

    #[test]
    fn other_texts_show_one_thing_each() {
        let pit = Observed::Thread(KernelThread::KvmPit, 0.12);
        for (text, found) in [
            (
                "nr_periods 100\nnr_throttled 80\nthrottled_usec 5\n",
                vec![Observed::Throttled { throttled: 80, periods: 100 }],
            ),
            (
                "# cat /sys/devices/system/clocksource/clocksource0/current_clocksource\nhpet\n",
                vec![Observed::Clock(DeviceClock::Hpet)],
            ),
            (
                "/sys/devices/system/clocksource/clocksource0/current_clocksource:acpi_pm\n",
                vec![Observed::Clock(DeviceClock::AcpiPm)],
            ),
            (
                "[ 0.1] clocksource: Switched to clocksource acpi_pm\n[ 1.2] clocksource: Switched to clocksource tsc\n",
                vec![],
            ),
            (
                "  PID USER  PR  NI VIRT RES SHR S  %CPU %MEM  TIME+ COMMAND\n  4711 root 20 0 0 0 0 S  12.0  0.0  1:00.00 kvm-pit/4700\n",
                vec![pit],
            ),
            (
                "  PID USER PR NI VIRT RES SHR S %CPU %MEM TIME+ COMMAND\n  3 root 20 0 1 1 1 R 57.9 0.0 5:45.06 fc_vcpu 1\n  2 root 20 0 1 1 1 R 56.5 0.0 5:42.44 CPU 0/KVM\n  1 root 20 0 1 1 1 R 26.2 0.0 2:33.69 firecracker\n",
                vec![Observed::Vcpus(2, 0.579, None)],
            ),
            // Of a host that is a VM itself.
            (
                "%Cpu(s): 13.9 us, 10.5 sy,  0.0 ni, 74.0 id,  0.6 wa,  0.0 hi,  0.6 si,  0.4 st\n\n  PID USER PR NI VIRT RES SHR S %CPU %MEM TIME+ COMMAND\n  3 root 20 0 1 1 1 R 92.0 0.0 5:45.06 CPU 1/KVM\n",
                vec![Observed::Vcpus(1, 0.92, Some(1)), Observed::Steal(0.004)],
            ),
            (
                "           CPU0       CPU1\n  0:    9000000          0   IO-APIC   2-edge      timer\nLOC:       1000       1000   Local timer interrupts\nRES:          9          9   Rescheduling interrupts\n",
                vec![Observed::Line { rtc: false, count: 9_000_000, all: 9_002_018 }],
            ),
            ("[    3.1] kvm: disabled by bios\n", vec![Observed::NoKvm]),
            (
                "cpu  10 0 10 100 0 0 0 40 0 0\ncpu0 10 0 10 100 0 0 0 40 0 0\nintr 5\n",
                vec![Observed::Steal(0.25)],
            ),
            (
                "cpu  10 0 10 100 0 0 0 99999999 0 0\ncpu0 10 0 10 100 0 0 0 9999999 0 0\nintr 5\n",
                vec![Observed::StealCounter],
            ),
            (
                "ioctl(12, KVM_CREATE_VM, 0)             = 14 <0.027335>\n",
                vec![Observed::Timed(TimedFunction::CreateVm, 27_335_000)],
            ),
            (
                "ioctl(9, KVM_SET_USER_MEMORY_REGION, {slot=0, flags=0, guest_phys_addr=0, memory_size=1048576, userspace_addr=0x7f30e01bd000}) = 0 <0.006168>\n\
                 ioctl(9, KVM_SET_USER_MEMORY_REGION, {slot=1, flags=0, guest_phys_addr=0, memory_size=0, userspace_addr=0x7f30e01bd000}) = 0 <0.106168>\n\
                 ioctl(9, KVM_IOEVENTFD, 0x7ffdb2ab3020) = 0 <0.005331>\n",
                vec![
                    Observed::Timed(TimedFunction::Ioeventfd, 5_331_000),
                    Observed::Timed(TimedFunction::CreateSlot, 6_168_000),
                ],
            ),
            // One of many.
            (
                "ioctl(9, KVM_IOEVENTFD, 0x7ffdb2ab3020) = 0 <0.000015>\n"
                    .repeat(20)
                    .replacen("0.000015", "0.005331", 1)
                    .as_str(),
                vec![Observed::Timed(TimedFunction::Ioeventfd, 15_000)],
            ),
            (
                "[1] task_numa_work (tid=5) took 1999 ms\n",
                vec![Observed::Timed(TimedFunction::NumaBalancing, 1_999_000_000)],
            ),
            (
                "Tracing 1 functions for \"irq_bypass_register_consumer\"... Hit\navg = 1405440 nsecs, total: 1 nsecs, count: 9\n",
                vec![Observed::Timed(TimedFunction::IrqBypass, 1_405_440)],
            ),
            (
                "retbleed:    Mitigation: IBRS\nmeltdown:    Mitigation: PTI\n",
                vec![
                    Observed::Mitigation(HostMitigation::Ibrs),
                    Observed::Mitigation(HostMitigation::Pti),
                ],
            ),
            (
                "Vulnerability Mds:  Mitigation; Clear CPU buffers; SMT vulnerable\n",
                vec![Observed::Mitigation(HostMitigation::ClearBuffers)],
            ),
            (
                "q: warning: This family of AMD CPU doesn't support hyperthreading(2)\n",
                vec![Observed::Message(LogMessage::NoTopoext)],
            ),
            (
                "ens18: bad gso: type: 4, size: 1448\n".repeat(5).as_str(),
                vec![Observed::Message(LogMessage::BadGso)],
            ),
            ("kvm [1]: vcpu6 unhandled rdmsr: 0x19c\n", vec![]),
            (
                "BUG: workqueue lockup - pool cpus=0\n  vp_notify+0x12/0x20\n",
                vec![Observed::Message(LogMessage::NotifyHangs)],
            ),
            (
                "Samples: 9 of event 'kvm:kvm_set_irq'\n  45.0%  gsi 11 level 1 source 0\n  45.0%  gsi 11 level 0 source 0\n  10.0%  gsi 0 level 0 source 0\n",
                vec![Observed::DeviceLine { gsi: 11, share: 0.9 }],
            ),
            (
                "51273 107 1:22 qemu-system-x86 -cpu max\n51278 CPU 0/TCG 99.9\n",
                vec![Observed::NoKvm],
            ),
            ("CPU 0/KVM 99.9\n", vec![]),
            (
                "[    4.01] tsc: Marking TSC unstable due to clocksource watchdog\n",
                vec![Observed::Message(LogMessage::TscMarked)],
            ),
            ("[    0.0] tsc: Marking TSC unstable due to running on Hyper-V\n", vec![]),
            (
                "Per-node process memory usage (in MBs) for PID 9 (qemu-kvm)\n     Node 0   Node 1  Total\nHuge  0.00 0.00 0.00\nTotal 750.00 250.00 1000.00\n",
                vec![Observed::Nodes { most: 0, next: 1, elsewhere: 0.25 }],
            ),
            (
                "PID Node 0 Node 1 Total\n---- ----\n10587 (qemu-kvm) 10 30 40\n10588 (qemu-kvm) 40 0 40\n---- ----\nTotal 50 30 80\n",
                vec![Observed::Nodes { most: 1, next: 0, elsewhere: 0.25 }],
            ),
            (
                "# ethtool -k tap0\ntx-checksumming: off\ntcp-segmentation-offload: off\n",
                vec![Observed::Message(LogMessage::TapOffloads)],
            ),
            ("# ethtool -k tap0\ntx-checksumming: on\ntcp-segmentation-offload: on\n", vec![]),
            // A guest's own are no cost of exits.
            ("Hypervisor vendor: KVM\nVulnerability Meltdown: Mitigation; PTI\n", vec![]),
            (
                "model name : QEMU Virtual CPU version 2.5+\n",
                vec![Observed::Message(LogMessage::DefaultCpu)],
            ),
            ("model name : QEMU Virtual CPU version 2.5+\nflags : fpu avx avx2\n", vec![]),
            (
                "hrtimer: interrupt took 5 ns\nQEMU Virtual CPU version 2.5+\n",
                vec![Observed::Message(LogMessage::DefaultCpu)],
            ),
            ("[<0>] ? kvm_async_pf_task_wait_schedule+0x14b/0x180\n", vec![]),
            (
                "[<0>] kvm_async_pf_task_wait_schedule+0x14b/0x180\n",
                vec![Observed::Message(LogMessage::AsyncPageFault)],
            ),
            // The rows of a post are cut.
            (
                "02:06:08 PM CPU %usr %nice %sys %iowait %irq %soft %steal %guest %gnice %idle\n02:06:09 PM 6 0.00 0.00 4.85 0.00 0.00 0.00 0.00 16.50 0.00 78.64\n02:06:21 PM 6 0.00 0.00 87.13 0.00 0\n",
                vec![Observed::HostKernel(0.8713)],
            ),
            ("hello world\n", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(all(text), found, "{text}");
        }
    }
}
