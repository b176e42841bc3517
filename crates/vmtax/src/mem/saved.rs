//! The report of `vmtax mem save`.

use std::time::Duration;

use serde_json::json;
use vmtax_machine::vm::Disk;
use vmtax_pageops::checkpoint::{Cost, Costs, Counted, Finished, Id, Phase, Summary};
use vmtax_report::numbers::{percent, size};

use super::flags::SaveArgs;
use super::passes::Pass;
use super::stream;

/// A checkpoint that was written.
pub(super) struct Saved {
    summary: Summary,
    costs: Costs,
    id: Id,
    /// Bytes of memory, and bytes that are no hole.
    memory: u64,
    data: u64,
    /// Time of the whole command.
    pub(super) wall: Duration,
    pub(super) cpu: Duration,
    /// Backend of the scan.
    pub(super) accel: String,
    pub(super) vm: Option<SavedVm>,
}

/// The VM after the save.
pub(super) struct SavedVm {
    pub(super) disks: Vec<Disk>,
    /// Whether it runs now.
    pub(super) goes_on: bool,
    /// Whether it ran while most of its memory was saved.
    pub(super) live: bool,
    /// Passes while it ran.
    pub(super) passes: Vec<Pass>,
    pub(super) times: PauseTimes,
}

/// Times of the pause.
pub(super) struct PauseTimes {
    /// From before the stop command until after the command to continue, or until the checkpoint was complete.
    pub(super) pause: Duration,
    /// Saving the state of the devices.
    pub(super) state: Duration,
    /// Memory.
    pub(super) pass: Pass,
}

impl Saved {
    pub(super) fn new(finished: &Finished, memory: u64, data: u64) -> Saved {
        let (summary, costs, id) = (finished.summary(), finished.costs(), finished.id());
        let (wall, cpu) = (Duration::ZERO, Duration::ZERO);
        Saved { summary, costs, id, memory, data, wall, cpu, accel: String::new(), vm: None }
    }

    pub(super) fn text(&self, args: &SaveArgs) -> String {
        let s = &self.summary;
        let mut parts = vec![format!("{} as they are", s.raw)];
        for (count, what) in [
            (s.compressed, "compressed"),
            (s.deltas, "as deltas"),
            (s.filled, "of one repeated word"),
            (s.zero, "zero"),
            (s.unchanged, "unchanged"),
        ] {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        }
        let seconds = self.wall.as_secs_f64();
        let mut text = format!(
            "{}: {} of memory, {} of it in use, in {} ({seconds:.2} s, {}/s)\npages: {}\nby: {}\n",
            stream::name(&args.output),
            size(self.memory),
            size(self.data),
            size(s.bytes),
            size((self.data as f64 / seconds.max(1e-9)) as u64),
            parts.join(", "),
            self.accel,
        );
        text.push_str(&self.phases_text());
        if let Some(vm) = &self.vm {
            text.push_str(&vm.text(args));
        }
        text.push_str(&format!("id: {}\n", self.id));
        for (disk, overlay) in self.overlays() {
            let (name, file) = (&disk.name, disk.file());
            text.push_str(&format!(
                "disk {name}: {file} stays as it is; the VM writes to {overlay}\n"
            ));
        }
        if self.vm.as_ref().is_some_and(|vm| !vm.goes_on && !args.stopped) {
            text.push_str("vm: was stopped before, and stays stopped\n");
        }
        text
    }

    fn phases_text(&self) -> String {
        let phase = |(phase, cost): (Phase, Cost)| {
            let mut text = format!("{} {}", phase.name(), milliseconds(cost.wall));
            if let (Phase::Scan, Some(share)) = (phase, self.costs.zero_share) {
                text.push_str(&format!(" (zero check {})", percent(share)));
            }
            text
        };
        let phases: Vec<String> = self.phases().map(phase).collect();
        let cycles = match self.costs.counted {
            Some(counted) => {
                let all: u64 = self.phases().map(|(_, cost)| cost.cycles).sum();
                format!("{:.0} million cycles of the phases ({})", all as f64 / 1e6, counted.name())
            }
            None => "no counter of cycles here".to_owned(),
        };
        format!(
            "time: {} of processor time ({cycles}); wall time: {}\n",
            milliseconds(self.cpu),
            phases.join(", ")
        )
    }

    /// Phases that took time.
    fn phases(&self) -> impl Iterator<Item = (Phase, Cost)> {
        let all = Phase::ALL.into_iter().map(|phase| (phase, self.costs.of_phase(phase)));
        all.filter(|(_, cost)| !cost.wall.is_zero())
    }

    /// Share of the processor time that only finds zero pages.
    fn zero_share(&self) -> Option<f64> {
        let scan = self.costs.of_phase(Phase::Scan).cpu.as_secs_f64();
        let share = self.costs.zero_share? * scan / self.cpu.as_secs_f64();
        share.is_finite().then_some(share)
    }

    /// Disks that keep their content, and the overlays that the VM writes to.
    fn overlays(&self) -> impl Iterator<Item = (&Disk, &str)> {
        let disks = self.vm.iter().flat_map(|vm| &vm.disks);
        disks.filter_map(|disk| Some((disk, disk.overlay.as_deref()?)))
    }

    pub(super) fn json(&self, args: &SaveArgs) -> serde_json::Value {
        let s = &self.summary;
        let phases: serde_json::Map<String, serde_json::Value> = self
            .phases()
            .map(|(phase, cost)| {
                let times = json!({
                    "seconds": cost.wall.as_secs_f64(),
                    "cpu_seconds": cost.cpu.as_secs_f64(),
                    "cycles": self.costs.counted.map(|_| cost.cycles),
                });
                (phase.name().to_owned(), times)
            })
            .collect();
        json!({
            "checkpoint": args.output.display().to_string(),
            "id": self.id.to_string(),
            "memory_bytes": self.memory,
            "data_bytes": self.data,
            "file_bytes": s.bytes,
            "seconds": self.wall.as_secs_f64(),
            "cpu_seconds": self.cpu.as_secs_f64(),
            "phases": phases,
            "cycles_counted": self.costs.counted.map(Counted::name),
            "zero_check_share_of_scan": self.costs.zero_share,
            "zero_check_share_of_processor_time": self.zero_share(),
            "accel": self.accel,
            "pages": {
                "raw": s.raw, "compressed": s.compressed, "deltas": s.deltas, "filled": s.filled,
                "zero": s.zero, "unchanged": s.unchanged,
            },
            "disks": self.vm.as_ref().map(|vm| &vm.disks),
            "running": self.vm.as_ref().map(|vm| vm.goes_on),
            "live": self.vm.as_ref().map(|vm| vm.live),
            "passes": self.vm.as_ref().map(SavedVm::passes_json),
            "pause": self.vm.as_ref().map(|vm| vm.times.json()),
        })
    }
}

impl SavedVm {
    fn text(&self, args: &SaveArgs) -> String {
        let mut text = String::new();
        if !self.passes.is_empty() {
            let passes = self.passes.iter();
            let passes = passes.map(|p| format!("{} in {}", p.pages, milliseconds(p.wall)));
            let passes: Vec<String> = passes.collect();
            text = format!("pages written while the VM ran: {}\n", passes.join(", then "));
        } else if args.live {
            text = "pages written while the VM ran: none, it was stopped\n".to_owned();
        }
        let PauseTimes { pause, state, pass } = &self.times;
        let (pause, state) = (milliseconds(*pause), milliseconds(*state));
        text.push_str(&match self.live {
            false => {
                let memory = milliseconds(pass.wall);
                format!("pause: {pause} (device state {state}, memory {memory})\n")
            }
            true => {
                let search = milliseconds(pass.search);
                let mut then = String::new();
                if !pass.is_copied {
                    let write = milliseconds(pass.wall.saturating_sub(pass.search));
                    then = format!(", writing them {write}");
                }
                let pages = pass.pages;
                format!("pause: {pause} (device state {state}; meanwhile finding {pages} changed pages {search}{then})\n")
            }
        });
        text
    }

    fn passes_json(&self) -> serde_json::Value {
        let passes = self.passes.iter();
        let pass = |p: &Pass| {
            let (search, seconds) = (p.search.as_secs_f64(), p.wall.as_secs_f64());
            json!({ "pages": p.pages, "compare_seconds": search, "seconds": seconds })
        };
        passes.map(pass).collect()
    }
}

impl PauseTimes {
    fn json(&self) -> serde_json::Value {
        json!({
            "seconds": self.pause.as_secs_f64(),
            "device_state_seconds": self.state.as_secs_f64(),
            "compare_seconds": self.pass.search.as_secs_f64(),
            "memory_seconds": self.pass.wall.as_secs_f64(),
            "pages": self.pass.pages,
            "written_after": self.pass.is_copied,
        })
    }
}

fn milliseconds(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    if ms < 10.0 { format!("{ms:.1} ms") } else { format!("{ms:.0} ms") }
}
