//! Sizes of pages of each running VM: what KVM has mapped, and what the memory behind it consists of.

use std::io::{self, Write};

use serde::Serialize;
use vmtax_analyse::audit;
use vmtax_events::setting::{Backing, Fact, Mapped, System, Unknown, VmProcess};

use crate::doctor::{hidden, shaped_vm, vm_name};
use crate::names::printable;
use crate::numbers::{percent, share, size};
use crate::text::layout::{Column, Grid, Paint, Room, Style, wrap};

/// Name and version of the JSON's shape, in `docs/pages.schema.json`.
pub const SCHEMA: &str = "vmtax-pages-1";

/// What is shown.
pub struct Pages<'a> {
    /// Version of this tool.
    pub tool_version: &'a str,
    /// The root that was read.
    pub root: &'a str,
    /// What was read.
    pub system: &'a System,
    /// The VMs to show.
    pub vms: &'a [VmProcess],
}

const NO_STATS_FD: &str = "What KVM has mapped comes from its counters in debugfs: KVM_GET_STATS_FD has more, and gives it only to \
                           the process that runs the VM.";

impl Pages<'_> {
    /// For a terminal of this width.
    pub fn text(&self, color: bool, width: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
        let paint = Paint { color };
        let title = format!(
            "vmtax {}: pages of VMs on {}",
            printable(self.tool_version),
            printable(self.root)
        );
        paint.line(out, Style::Heading, &title)?;
        paint.line(out, Style::Faint, &format!("  KVM  {}", crate::kvm::line(&self.system.kvm)))?;
        let mut notes: Vec<String> = Vec::new();
        if self.vms.is_empty() {
            paint.line(out, Style::Plain, "")?;
            let what = if self.system.listed {
                "No running VM was found."
            } else {
                "There is no list of processes."
            };
            paint.line(out, Style::Plain, what)?;
        } else {
            paint.line(out, Style::Plain, "")?;
            self.grid(&mut notes).write(out, paint, width)?;
            notes.push(NO_STATS_FD.to_owned());
            notes.push("Memory is all of the VMM's mappings of 2 MiB and more.".to_owned());
        }
        if self.system.hidden > 0 {
            notes.push(hidden(self.system.hidden));
        }
        if !notes.is_empty() {
            paint.line(out, Style::Plain, "")?;
        }
        for note in notes {
            for line in wrap(&note, width, "", "") {
                paint.line(out, Style::Faint, &line)?;
            }
        }
        Ok(())
    }

    fn grid(&self, notes: &mut Vec<String>) -> Grid {
        let mut grid = Grid::new(vec![
            Column::key("VM"),
            Column::number("all", Room::Keep),
            Column::number("4K", Room::Keep),
            Column::number("2M", Room::Keep),
            Column::number("1G", Room::Keep),
            Column::number("THP", Room::Keep),
            Column::number("hugetlbfs", Room::Keep),
            Column::number("large", Room::Keep),
        ]);
        for vm in self.vms {
            let title = format!("{}, {}", vm_name(vm), audit::kind(vm).name());
            grid.row(
                Style::Heading,
                std::iter::once(title).chain(vec![String::new(); 7]).collect(),
            );
            grid.row(Style::Plain, mapped_cells(&vm.mapped(), notes));
            grid.row(Style::Plain, backing_cells(&vm.backing, notes));
        }
        grid
    }

    /// For programs.
    pub fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        let document = Document {
            schema: SCHEMA,
            tool: Tool { name: "vmtax", version: self.tool_version },
            root: self.root,
            kvm: crate::kvm::shaped(&self.system.kvm),
            hidden_processes: self.system.hidden,
            vms: self.vms.iter().map(shaped).collect(),
        };
        crate::json::write(&document, out)
    }
}

fn mapped_cells(fact: &Fact<Mapped>, notes: &mut Vec<String>) -> Vec<String> {
    let mut cells = vec!["  mapped in EPT/NPT".to_owned()];
    match &fact.value {
        Ok(mapped) => {
            cells.push(size(mapped.total()));
            cells.extend(mapped.bytes().map(size));
            cells.extend(["-".to_owned(), "-".to_owned()]);
            cells.push(share(mapped.large(), mapped.total()).map_or("-".to_owned(), percent));
        }
        Err(why) => {
            cells.extend(vec!["?".to_owned(); 7]);
            note(notes, &fact.path, why);
        }
    }
    cells
}

fn backing_cells(fact: &Fact<Backing>, notes: &mut Vec<String>) -> Vec<String> {
    let mut cells = vec!["  memory of the VMM".to_owned()];
    match &fact.value {
        Ok(backing) => {
            cells.push(size(backing.resident));
            cells.push(size(backing.resident.saturating_sub(backing.large())));
            cells.extend(["-".to_owned(), "-".to_owned()]);
            cells.push(size(backing.anon_thp.saturating_add(backing.shmem_thp)));
            cells.push(size(backing.hugetlb));
            cells.push(share(backing.large(), backing.resident).map_or("-".to_owned(), percent));
        }
        Err(why) => {
            cells.extend(vec!["?".to_owned(); 7]);
            note(notes, &fact.path, why);
        }
    }
    cells
}

/// Why something is not known, and what to do.
fn note(notes: &mut Vec<String>, path: &str, why: &Unknown) {
    let is_debugfs = path.starts_with("/sys/kernel/debug/");
    let what = match why {
        Unknown::Denied => "run as root".to_owned(),
        Unknown::Missing if is_debugfs => {
            "mount -t debugfs none /sys/kernel/debug; kernels before 5.15 have no such counters"
                .to_owned()
        }
        _ => "there is nothing to be done".to_owned(),
    };
    notes.push(printable(&format!("{path}: {why}; {what}.")));
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    tool: Tool<'a>,
    root: &'a str,
    kvm: crate::kvm::Shaped<'a>,
    hidden_processes: u64,
    vms: Vec<Vm<'a>>,
}

#[derive(Serialize)]
struct Tool<'a> {
    name: &'static str,
    version: &'a str,
}

#[derive(Serialize)]
struct Vm<'a> {
    #[serde(flatten)]
    vm: crate::doctor::ShapedVm<'a>,
    mapped: MappedShape,
    backing: BackingShape,
}

#[derive(Serialize)]
struct MappedShape {
    path: String,
    unknown: Option<String>,
    bytes_4k: Option<u64>,
    bytes_2m: Option<u64>,
    bytes_1g: Option<u64>,
}

#[derive(Serialize)]
struct BackingShape {
    path: String,
    unknown: Option<String>,
    resident: Option<u64>,
    anon_thp: Option<u64>,
    shmem_thp: Option<u64>,
    hugetlb: Option<u64>,
    shared: Option<u64>,
    not_eligible: Option<u64>,
}

fn shaped(vm: &VmProcess) -> Vm<'_> {
    let mapped = vm.mapped();
    let bytes = mapped.value.as_ref().ok().map(Mapped::bytes);
    let backing = vm.backing.value.as_ref().ok();
    Vm {
        vm: shaped_vm(vm),
        mapped: MappedShape {
            unknown: mapped.value.as_ref().err().map(ToString::to_string),
            path: mapped.path,
            bytes_4k: bytes.map(|[bytes, _, _]| bytes),
            bytes_2m: bytes.map(|[_, bytes, _]| bytes),
            bytes_1g: bytes.map(|[_, _, bytes]| bytes),
        },
        backing: BackingShape {
            path: vm.backing.path.clone(),
            unknown: vm.backing.value.as_ref().err().map(ToString::to_string),
            resident: backing.map(|b| b.resident),
            anon_thp: backing.map(|b| b.anon_thp),
            shmem_thp: backing.map(|b| b.shmem_thp),
            hugetlb: backing.map(|b| b.hugetlb),
            shared: backing.map(|b| b.shared),
            not_eligible: backing.map(|b| b.not_eligible),
        },
    }
}
