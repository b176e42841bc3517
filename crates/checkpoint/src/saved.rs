//! What was saved, and what it took.

use std::time::Duration;

use vmtax_machine::vm::MediumDisk;
use vmtax_pageops::checkpoint::{
    CheckpointCosts, CheckpointId, FinishedCheckpoint, Phase, PhaseCost, Summary,
};

use crate::passes::MemoryPass;

/// A checkpoint that was written.
#[derive(Debug)]
pub struct Saved {
    /// How its pages are stored.
    pub summary: Summary,
    /// Time of each phase of writing.
    pub costs: CheckpointCosts,
    pub id: CheckpointId,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of memory that are no hole.
    pub data: u64,
    /// The VM, unless it is of an image.
    pub vm: Option<SavedVm>,
}

/// The VM after the save.
#[derive(Debug)]
pub struct SavedVm {
    /// Its disks, with the overlays that it writes to from the pause on.
    pub disks: Vec<MediumDisk>,
    /// Whether it runs now.
    pub goes_on: bool,
    /// Whether it ran while most of its memory was saved.
    pub live: bool,
    /// Passes while it ran.
    pub passes: Vec<MemoryPass>,
    pub times: PauseTimes,
}

#[derive(Debug)]
pub struct PauseTimes {
    /// From before the stop command until after the command to continue, or until the checkpoint was complete.
    pub pause: Duration,
    /// Saving the state of the devices.
    pub state: Duration,
    pub pass: MemoryPass,
}

impl Saved {
    pub(crate) fn new(finished: &FinishedCheckpoint, memory: u64, data: u64) -> Saved {
        let (summary, costs, id) = (finished.summary(), finished.costs(), finished.id());
        Saved { summary, costs, id, memory, data, vm: None }
    }

    /// Phases that took time.
    pub fn phases(&self) -> impl Iterator<Item = (Phase, PhaseCost)> {
        let all = Phase::ALL.into_iter().map(|phase| (phase, self.costs.of_phase(phase)));
        all.filter(|(_, cost)| !cost.wall.is_zero())
    }

    /// Disks that keep their content, and the overlays that the VM writes to.
    pub fn overlays(&self) -> impl Iterator<Item = (&MediumDisk, &str)> {
        let disks = self.vm.iter().flat_map(|vm| &vm.disks);
        disks.filter_map(|disk| Some((disk, disk.overlay.as_deref()?)))
    }
}
