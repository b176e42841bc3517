//! What is looked at, and how: time, place, order. No clock and no terminal.

mod moves;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use vmtax_analyse::ledger::Taker;
use vmtax_analyse::{Frames, IntervalFrame, KeyValue, ledger};
use vmtax_events::{Coverage, Losses, Recording};

use super::column::{self, RowMeasure, ScreenLine};
use super::rows::{self, Grouped, RowSums, View, Within};
use super::space;
use crate::losses;
use crate::names::{self, printable};
use crate::numbers;
use crate::table::{Cell, Column, Table};

/// Where frames come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSource {
    /// The running kernel, read this often.
    Live(Duration),
    /// A recording. All of it is there.
    Replay,
}

/// What is known of the host and of what is recorded.
#[derive(Clone, Debug, Default)]
pub struct HostFacts {
    /// Host, kernel, emulator, names of VMs. Hostile text.
    pub recording: Recording,
    /// One sentence for each thing that is missing; hostile text is made harmless already.
    pub losses: Vec<String>,
    /// These are worth a warning.
    pub is_lossy: bool,
}

impl HostFacts {
    /// Of what a recording says of itself.
    pub fn new(recording: Recording, losses: &Losses, complete: bool) -> HostFacts {
        let is_lossy = losses::are_grave(losses, complete);
        HostFacts { recording, losses: losses::of(losses, complete), is_lossy }
    }
}

/// A place in the tree of VMs, vCPUs, causes and exits, with the order there.
#[derive(Clone, Debug)]
pub(super) struct TreePlace {
    pub(super) within: Within,
    pub(super) view: View,
    pub(super) filter: String,
    /// The key of a column.
    pub(super) sort: &'static str,
    pub(super) is_descending: bool,
    /// The row that was chosen, and where it was: another may take its place when it is gone.
    chosen: Option<Vec<KeyValue>>,
    index: usize,
}

impl TreePlace {
    fn new(within: Within, view: View) -> TreePlace {
        TreePlace {
            within,
            view,
            filter: String::new(),
            sort: column::TAX,
            is_descending: true,
            chosen: None,
            index: 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeShown {
    Newest,
    /// The frame that starts then.
    Start(u64),
    All,
}

/// A page that is read and left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageOver {
    Help,
    Losses,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VmState {
    Runs,
    /// Nothing of it in this interval.
    Idle,
    /// Its process has ended, or a recording has nothing of it any more.
    Gone,
}

/// A row as it is shown.
#[derive(Clone, Debug)]
pub(super) struct ScreenRow {
    pub(super) key: Vec<KeyValue>,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) state: VmState,
    pub(super) sums: RowSums,
    /// A cell for each column.
    pub(super) cells: Vec<Cell>,
}

/// All that is to be painted but for fixed words.
pub(super) struct ShownScreen {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<ScreenRow>,
    pub(super) index: usize,
    pub(super) whole: RowSums,
    pub(super) vms: usize,
    pub(super) measure: RowMeasure,
    /// Exits a second of the chosen row, frame by frame, up to the one that is shown.
    pub(super) history: Vec<f64>,
    /// Who had the processors of the chosen VM or vCPU while it was preempted, most time first, with their part of that time.
    pub(super) takers: Vec<(String, f64)>,
}

/// A VM that has ended is shown for this many more frames.
const ENDED_FRAMES: usize = 3;
/// Frames a second.
const SPEEDS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// The state of the screen.
#[derive(Clone, Debug)]
pub struct ScreenModel {
    source: FrameSource,
    pub(super) facts: HostFacts,
    pub(super) frames: Frames,
    /// VMs whose processes run; a recording does not say it.
    alive: Option<BTreeSet<u32>>,
    /// VMs that have ended and are still known.
    ended: BTreeSet<u32>,
    at: TimeShown,
    is_playing: bool,
    speed: usize,
    places: Vec<TreePlace>,
    /// What is typed into the filter.
    pub(super) prompt: Option<String>,
    /// What covers the rows.
    pub(super) page_over: Option<PageOver>,
    /// Rows that have room.
    pub(super) page: usize,
    width: u16,
}

impl ScreenModel {
    /// With what there is so far.
    pub fn new(source: FrameSource, facts: HostFacts, frames: Frames) -> ScreenModel {
        ScreenModel {
            source,
            facts,
            frames,
            alive: None,
            ended: BTreeSet::new(),
            at: if source == FrameSource::Replay { TimeShown::All } else { TimeShown::Newest },
            is_playing: false,
            speed: 1,
            places: vec![TreePlace::new(Within::default(), View::Vms)],
            prompt: None,
            page_over: None,
            page: 1,
            width: 0,
        }
    }

    /// The width of the terminal, cells.
    pub fn resize(&mut self, width: u16, height: u16) {
        self.width = width;
        self.page = space::rows_in(height);
    }

    /// A frame of the running kernel, with what is known now. `ended` are those of its VMs whose processes have ended.
    pub fn push(&mut self, frame: IntervalFrame, facts: HostFacts, ended: &BTreeSet<u32>) {
        let vms = facts.recording.vms.iter().map(|vm| vm.id);
        let alive: BTreeSet<u32> = vms.filter(|vm| !ended.contains(vm)).collect();
        let is_forgotten = |vm: &u32| !ended.contains(vm) && !alive.contains(vm);
        let forgotten = self.ended.iter().copied().filter(is_forgotten).collect();
        self.alive = Some(alive);
        self.ended.clone_from(ended);
        // Names of those that ended are needed for a while.
        let mut vms = std::mem::take(&mut self.facts.recording.vms);
        self.facts = facts;
        let spans = self.frames.spans();
        let known: BTreeSet<u32> = self.facts.recording.vms.iter().map(|vm| vm.id).collect();
        vms.retain(|vm| !known.contains(&vm.id) && spans.contains_key(&vm.id));
        self.facts.recording.vms.extend(vms);
        self.frames.push(frame, &forgotten);
        // What was looked at may have been forgotten.
        if let (TimeShown::Start(start), Some(first)) = (self.at, self.frames.first()) {
            self.at = TimeShown::Start(start.max(first));
        }
    }

    /// When a recording plays: how long until [`ScreenModel::tick`].
    pub fn tick_after(&self) -> Option<Duration> {
        self.is_playing.then(|| Duration::from_secs(1) / SPEEDS[self.speed])
    }

    /// The next frame of a recording that plays.
    pub fn tick(&mut self) {
        let next = match self.at {
            TimeShown::Start(start) => self.frames.after(start),
            TimeShown::All | TimeShown::Newest => self.frames.first(),
        };
        match next {
            Some(next) if self.is_playing => self.at = TimeShown::Start(next),
            _ => self.is_playing = false,
        }
        if let TimeShown::Start(start) = self.at
            && self.frames.last() == Some(start)
        {
            self.is_playing = false;
        }
    }

    pub(super) fn place(&self) -> &TreePlace {
        // The first place is never left.
        self.places.last().unwrap_or(&self.places[0])
    }

    fn place_mut(&mut self) -> &mut TreePlace {
        let last = self.places.len() - 1;
        &mut self.places[last]
    }

    fn coverage(&self) -> Coverage {
        self.facts.recording.coverage
    }

    /// The frame that is shown: of one that is not there nothing.
    fn frame(&self) -> Option<&IntervalFrame> {
        match self.at {
            TimeShown::All => Some(self.frames.total()),
            TimeShown::Newest => self.frames.iter().next_back(),
            TimeShown::Start(start) => self.frames.at(start),
        }
    }

    pub(super) fn is_live(&self) -> bool {
        self.source != FrameSource::Replay
    }

    pub(super) fn is_paused(&self) -> bool {
        self.at != TimeShown::Newest
    }

    /// What time is shown, in words.
    pub(super) fn when(&self) -> String {
        let seconds = |ns: u64| numbers::fixed(ns as f64 / 1e9, 1);
        let first = self.frames.total().start_ns;
        let place = |start: u64| {
            let length = self.frames.at(start).map_or(0, |frame| frame.length_ns);
            let (from, to) = (start.saturating_sub(first), (start - first).saturating_add(length));
            let number = self.frames.before(start) + 1;
            let [number, all] = [number, self.frames.len()].map(|n| numbers::count(n as u64));
            format!("{number} of {all}, {}-{} s", seconds(from), seconds(to))
        };
        let length = seconds(self.frames.total().length_ns);
        match (self.source, self.at) {
            (FrameSource::Live(every), TimeShown::Newest) => {
                format!("live, every {}", numbers::duration(every.as_nanos() as f64))
            }
            (FrameSource::Live(_), TimeShown::Start(start)) => {
                format!("paused at {}", place(start))
            }
            (FrameSource::Live(_), TimeShown::All) => format!("all since the start, {length} s"),
            // A table that another tool printed: nothing says how long it took.
            (FrameSource::Replay, _) if !self.frames.is_timed() => "all".to_owned(),
            (FrameSource::Replay, TimeShown::Start(start)) if self.is_playing => {
                format!("playing {}/s, {}", SPEEDS[self.speed], place(start))
            }
            (FrameSource::Replay, TimeShown::Start(start)) => format!("interval {}", place(start)),
            (FrameSource::Replay, _) => format!("all {length} s"),
        }
    }

    /// What is to be painted.
    pub(super) fn shown(&self) -> ShownScreen {
        let place = self.place();
        let empty = IntervalFrame::default();
        let frame = self.frame().unwrap_or(&empty);
        let grouped = rows::group(frame, self.coverage(), &place.within, place.view);
        let is_rate = self.at != TimeShown::All && self.frames.is_timed();
        let time = &grouped.whole.time;
        let measure = RowMeasure {
            length_ns: is_rate.then_some(frame.length_ns),
            base_ns: ledger::running_ns(time),
            coverage: self.coverage(),
        };
        let whole = grouped.whole.clone();
        let mut rows = self.rows(grouped, frame);
        let lines =
            rows.iter().map(|row| ScreenLine { id: &row.id, name: &row.name, sums: &row.sums });
        let described = column::columns(place.view, measure, &whole.time);
        let Table { columns, rows: cells, .. } =
            Table::of(lines).columns(described, |line| *line).table();
        for (row, of_row) in rows.iter_mut().zip(cells) {
            row.cells = of_row.cells;
        }
        self.sort(&mut rows, &columns);
        let index = self.index(&rows);
        let history = rows.get(index).map_or_else(Vec::new, |row| self.history(&row.key));
        let takers = rows.get(index).map_or_else(Vec::new, |row| self.takers(frame, row));
        ShownScreen {
            columns,
            takers,
            index,
            vms: self.vms(frame).values().filter(|state| **state != VmState::Gone).count(),
            rows,
            whole,
            measure,
            history,
        }
    }

    fn takers(&self, frame: &IntervalFrame, row: &ScreenRow) -> Vec<(String, f64)> {
        let within = match row.key.first() {
            Some(KeyValue::Vm(_) | KeyValue::Vcpu(..)) => Within::default().row(&row.key),
            _ => return Vec::new(),
        };
        let mut sums: BTreeMap<&Taker, u64> = BTreeMap::new();
        for ((vm, vcpu, taker), taken) in &frame.taken_by {
            if within.holds_vcpu(*vm, *vcpu) {
                let sum = sums.entry(taker).or_default();
                *sum = sum.saturating_add(taken.time_ns);
            }
        }
        let all = sums.values().fold(0, |sum: u64, ns| sum.saturating_add(*ns));
        let mut takers: Vec<_> = sums.into_iter().filter(|(_, ns)| *ns > 0).collect();
        takers.sort_by_key(|(taker, ns)| (Reverse(*ns), *taker));
        let named = |(taker, ns): (&Taker, u64)| {
            (printable(&taker.who(&self.facts.recording)), ns as f64 / all as f64)
        };
        takers.into_iter().map(named).collect()
    }

    /// Rows of the place, with those of which there is nothing just now, filtered and sorted.
    fn rows(&self, grouped: Grouped, frame: &IntervalFrame) -> Vec<ScreenRow> {
        let place = self.place();
        let vms = self.vms(frame);
        let mut groups = grouped.rows;
        if place.view == View::Vms {
            vms.keys().for_each(|vm| {
                groups.entry(vec![KeyValue::Vm(*vm)]).or_default();
            });
        }
        if place.view == View::Vcpus {
            for (vm, vcpu) in self.frames.total().time.keys() {
                if place.within.holds_vcpu(*vm, *vcpu) && vms.contains_key(vm) {
                    groups.entry(vec![KeyValue::Vcpu(*vm, *vcpu)]).or_default();
                }
            }
        }
        let rows = groups.into_iter();
        rows.map(|(key, sums)| self.row(key, sums, &vms, grouped.has_levels))
            .filter(|row| matches(row, &place.filter))
            .collect()
    }

    fn row(
        &self,
        key: Vec<KeyValue>,
        sums: RowSums,
        vms: &BTreeMap<u32, VmState>,
        has_levels: bool,
    ) -> ScreenRow {
        let recording = &self.facts.recording;
        let vm_name = |vm: u32| names::vm_name(recording, vm).map(names::printable);
        let is_one = self.place().within.vm.is_some();
        let (id, name, vm) = match key.as_slice() {
            [KeyValue::Vm(vm)] => (vm.to_string(), vm_name(*vm).unwrap_or_default(), Some(*vm)),
            [KeyValue::Vcpu(vm, vcpu)] if is_one => {
                (vm.to_string(), format!("vCPU {}", names::vcpu_name(*vcpu)), Some(*vm))
            }
            [KeyValue::Vcpu(vm, vcpu)] => {
                let name = vm_name(*vm).unwrap_or_default();
                let vcpu = names::vcpu_name(*vcpu);
                (vm.to_string(), format!("vCPU {vcpu} {name}").trim_end().to_owned(), Some(*vm))
            }
            [KeyValue::Cause(cause)] => {
                (String::new(), format!("{:<16} {}", cause.name(), cause.describe()), None)
            }
            values => {
                let parts = values.iter().filter_map(|value| match value {
                    KeyValue::Level(level) => has_levels.then(|| format!("({})", level.name())),
                    value => Some(names::value(*value)).filter(|name| !name.is_empty()),
                });
                (String::new(), parts.collect::<Vec<_>>().join(" "), None)
            }
        };
        let is_empty = sums == RowSums::default();
        let state = match vm.and_then(|vm| vms.get(&vm)) {
            Some(VmState::Gone) => VmState::Gone,
            _ if is_empty => VmState::Idle,
            _ => VmState::Runs,
        };
        ScreenRow { key, id, name, state, sums, cells: Vec::new() }
    }

    /// The VMs that are to be shown, and how they are.
    fn vms(&self, frame: &IntervalFrame) -> BTreeMap<u32, VmState> {
        let mut vms: BTreeMap<u32, VmState> = BTreeMap::new();
        let seen = frame.exits.keys().map(|key| key.vm);
        for vm in seen.chain(frame.time.keys().map(|(vm, _)| *vm)) {
            let is_gone = self.at == TimeShown::All && self.ended.contains(&vm);
            vms.insert(vm, if is_gone { VmState::Gone } else { VmState::Runs });
        }
        let now = match self.at {
            TimeShown::Start(start) => start,
            TimeShown::Newest => self.frames.last().unwrap_or_default(),
            TimeShown::All => return vms,
        };
        for (&vm, &(first, last)) in self.frames.spans() {
            let is_alive = match &self.alive {
                Some(alive) => alive.contains(&vm),
                None => last >= now,
            };
            if vms.contains_key(&vm) || first > now {
                continue;
            }
            if is_alive || last > now {
                vms.insert(vm, VmState::Idle);
            } else if self.frames.before(now) <= self.frames.before(last) + ENDED_FRAMES {
                vms.insert(vm, VmState::Gone);
            }
        }
        if self.at == TimeShown::Newest {
            self.alive.iter().flatten().for_each(|vm| {
                vms.entry(*vm).or_insert(VmState::Idle);
            });
        }
        vms
    }

    fn sort(&self, rows: &mut [ScreenRow], columns: &[Column]) {
        let place = self.place();
        let keys = [place.sort, column::EXITS];
        let at = keys.map(|key| columns.iter().position(|column| column.key == key));
        // What is not known is less than any number.
        let numbers = |row: &ScreenRow| at.map(|at| at.and_then(|at| row.cells[at].sort_key()));
        rows.sort_by(|x, y| {
            let order = match place.sort {
                column::ID => x.key.cmp(&y.key),
                column::NAME => x.name.cmp(&y.name),
                _ => numbers(x).cmp(&numbers(y)),
            };
            let order = if place.is_descending { order.reverse() } else { order };
            order.then_with(|| x.key.cmp(&y.key))
        });
    }

    /// Where the chosen row is, or the one that took its place.
    fn index(&self, rows: &[ScreenRow]) -> usize {
        let place = self.place();
        let chosen = place.chosen.as_ref();
        let found = rows.iter().position(|row| Some(&row.key) == chosen);
        found.unwrap_or(place.index).min(rows.len().saturating_sub(1))
    }

    fn history(&self, row: &[KeyValue]) -> Vec<f64> {
        let place = self.place();
        let until = match self.at {
            TimeShown::Start(start) => start,
            TimeShown::All | TimeShown::Newest => u64::MAX,
        };
        let frames = self.frames.iter().filter(|frame| frame.start_ns <= until);
        frames
            .map(|frame| {
                let count = rows::count(frame, &place.within, place.view, row);
                count as f64 * 1e9 / frame.length_ns.max(1) as f64
            })
            .collect()
    }

    /// Where we are: `all > web1 (1234) > vCPU 0 > ipi`.
    pub(super) fn path(&self) -> String {
        let within = &self.place().within;
        let mut path = vec!["host".to_owned()];
        path.extend(within.vm.map(|vm| names::vm(&self.facts.recording, vm)));
        path.extend(within.vcpu.map(|vcpu| format!("vCPU {}", names::vcpu_name(vcpu))));
        path.extend(within.cause.map(|cause| cause.name().to_owned()));
        path.join(" > ")
    }

    pub(super) fn whole_tax(whole: &RowSums) -> Option<f64> {
        ledger::tax(&whole.time)
    }
}

fn matches(row: &ScreenRow, filter: &str) -> bool {
    let filter = filter.to_lowercase();
    row.name.to_lowercase().contains(&filter) || (!row.id.is_empty() && row.id.contains(&filter))
}
