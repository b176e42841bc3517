//! The report of `vmtax mem save`.

use std::time::Duration;

use serde_json::json;
use vmtax_checkpoint::{MemoryPass, PauseTimes, Saved, SavedVm, stream};
use vmtax_pageops::checkpoint::{CycleKind, Phase, PhaseCost};
use vmtax_report::numbers::{self, percent, size};

use super::flags::SaveArgs;

/// A save, reported.
pub(super) struct SaveReport<'a> {
    pub(super) args: &'a SaveArgs,
    pub(super) saved: &'a Saved,
    /// Time of the whole command, and processor time.
    pub(super) wall: Duration,
    pub(super) cpu: Duration,
    /// Backend of the scan.
    pub(super) accel: String,
}

impl SaveReport<'_> {
    pub(super) fn text(&self) -> String {
        let s = &self.saved.summary;
        let mut parts = vec![format!("{} as they are", numbers::count(s.raw))];
        for (count, what) in [
            (s.compressed, "compressed"),
            (s.deltas, "as deltas"),
            (s.filled, "of one repeated word"),
            (s.zero, "zero"),
            (s.unchanged, "unchanged"),
        ] {
            if count > 0 {
                parts.push(format!("{} {what}", numbers::count(count)));
            }
        }
        let seconds = self.wall.as_secs_f64();
        let mut text = format!(
            "{}: {} of memory, {} of it in use, in {} ({seconds:.2} s, {}/s)\npages: {}\nby: {}\n",
            stream::name(&self.args.output),
            size(self.saved.memory),
            size(self.saved.data),
            size(s.bytes),
            size((self.saved.data as f64 / seconds.max(1e-9)) as u64),
            parts.join(", "),
            self.accel,
        );
        text.push_str(&self.phases_text());
        if let Some(vm) = &self.saved.vm {
            text.push_str(&vm_text(vm, self.args.live));
        }
        text.push_str(&format!("id: {}\n", self.saved.id));
        for (disk, overlay) in self.saved.overlays() {
            let (name, file) = (&disk.name, disk.file());
            text.push_str(&format!(
                "disk {name}: {file} stays as it is; the VM writes to {overlay}\n"
            ));
        }
        if self.saved.vm.as_ref().is_some_and(|vm| !vm.goes_on && !self.args.stopped) {
            text.push_str("vm: was stopped before, and stays stopped\n");
        }
        text
    }

    fn phases_text(&self) -> String {
        let phase = |(phase, cost): (Phase, PhaseCost)| {
            let mut text = format!("{} {}", phase.name(), milliseconds(cost.wall));
            if let (Phase::Scan, Some(share)) = (phase, self.saved.costs.zero_share) {
                text.push_str(&format!(" ({} of it finds zero pages)", percent(share)));
            }
            text
        };
        let phases: Vec<String> = self.saved.phases().map(phase).collect();
        let cycles = match self.saved.costs.counted {
            Some(counted) => {
                let all: u64 = self.saved.phases().map(|(_, cost)| cost.cycles).sum();
                format!(
                    "{} million cycles of the phases ({})",
                    numbers::whole(all as f64 / 1e6),
                    counted.name()
                )
            }
            None => "no counter of cycles here".to_owned(),
        };
        format!(
            "time: {} of processor time ({cycles}); wall time: {}\n",
            milliseconds(self.cpu),
            phases.join(", ")
        )
    }

    /// Share of the processor time that only finds zero pages.
    fn zero_share(&self) -> Option<f64> {
        let scan = self.saved.costs.of_phase(Phase::Scan).cpu.as_secs_f64();
        let share = self.saved.costs.zero_share? * scan / self.cpu.as_secs_f64();
        share.is_finite().then_some(share)
    }

    pub(super) fn json(&self) -> serde_json::Value {
        let s = &self.saved.summary;
        let phases: serde_json::Map<String, serde_json::Value> = self
            .saved
            .phases()
            .map(|(phase, cost)| {
                let times = json!({
                    "seconds": cost.wall.as_secs_f64(),
                    "cpu_seconds": cost.cpu.as_secs_f64(),
                    "cycles": self.saved.costs.counted.map(|_| cost.cycles),
                });
                (phase.name().to_owned(), times)
            })
            .collect();
        json!({
            "checkpoint": self.args.output.display().to_string(),
            "id": self.saved.id.to_string(),
            "memory_bytes": self.saved.memory,
            "data_bytes": self.saved.data,
            "file_bytes": s.bytes,
            "seconds": self.wall.as_secs_f64(),
            "cpu_seconds": self.cpu.as_secs_f64(),
            "phases": phases,
            "cycles_counted": self.saved.costs.counted.map(CycleKind::name),
            "zero_check_share_of_scan": self.saved.costs.zero_share,
            "zero_check_share_of_processor_time": self.zero_share(),
            "accel": self.accel,
            "pages": {
                "raw": s.raw, "compressed": s.compressed, "deltas": s.deltas, "filled": s.filled,
                "zero": s.zero, "unchanged": s.unchanged,
            },
            "disks": self.saved.vm.as_ref().map(|vm| &vm.disks),
            "running": self.saved.vm.as_ref().map(|vm| vm.goes_on),
            "live": self.saved.vm.as_ref().map(|vm| vm.live),
            "passes": self.saved.vm.as_ref().map(passes_json),
            "pause": self.saved.vm.as_ref().map(|vm| pause_json(&vm.times)),
        })
    }
}

fn vm_text(vm: &SavedVm, live: bool) -> String {
    let mut text = String::new();
    if !vm.passes.is_empty() {
        let passes = vm.passes.iter();
        let passes =
            passes.map(|p| format!("{} in {}", numbers::count(p.pages), milliseconds(p.wall)));
        let passes: Vec<String> = passes.collect();
        text = format!("pages written while the VM ran: {}\n", passes.join(", then "));
    } else if live {
        text = "pages written while the VM ran: none, it was stopped\n".to_owned();
    }
    let PauseTimes { pause, state, pass } = &vm.times;
    let (pause, state) = (milliseconds(*pause), milliseconds(*state));
    text.push_str(&match vm.live {
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
            let pages = numbers::count(pass.pages);
            format!("pause: {pause} (device state {state}; meanwhile finding {pages} changed pages {search}{then})\n")
        }
    });
    text
}

fn passes_json(vm: &SavedVm) -> serde_json::Value {
    let passes = vm.passes.iter();
    let pass = |p: &MemoryPass| {
        let (search, seconds) = (p.search.as_secs_f64(), p.wall.as_secs_f64());
        json!({ "pages": p.pages, "compare_seconds": search, "seconds": seconds })
    };
    passes.map(pass).collect()
}

fn pause_json(times: &PauseTimes) -> serde_json::Value {
    json!({
        "seconds": times.pause.as_secs_f64(),
        "device_state_seconds": times.state.as_secs_f64(),
        "compare_seconds": times.pass.search.as_secs_f64(),
        "memory_seconds": times.pass.wall.as_secs_f64(),
        "pages": times.pass.pages,
        "written_after": times.pass.is_copied,
    })
}

fn milliseconds(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    format!("{} ms", numbers::fixed(ms, usize::from(ms < 10.0)))
}
