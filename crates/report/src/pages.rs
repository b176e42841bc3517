//! Sizes of pages of each running VM: what KVM has mapped, and what the memory behind it consists of.

use std::io::{self, Write};

use vmtax_analyse::audit;
use vmtax_events::setting::{Fact, KvmMapped, MemoryBacking, System, Unknown, VmProcess};

use crate::doctor::{hidden, tool, vm_fields, vm_name};
use crate::html::{TablePage, TableSection};
use crate::names::printable;
use crate::numbers::{percent, share};
use crate::table::{Cell, Column, Table};
use crate::tables::AllFormats;
use crate::text::TextLayout;
use crate::text::layout::{Paint, Style, wrap};

/// Name and version of the JSON's shape, in `docs/pages.schema.json`.
pub const SCHEMA: &str = "vmtax-pages-1";

pub struct PagesReport<'a> {
    pub tool_version: &'a str,
    /// The root that was read.
    pub root: &'a str,
    pub system: &'a System,
    /// The VMs to show.
    pub vms: &'a [VmProcess],
}

/// VMs with a sentence on a page.
const LISTED: usize = 5;

const NO_STATS_FD: &str = "What KVM has mapped comes from its counters in debugfs: KVM_GET_STATS_FD has more, and gives it only to \
                           the process that runs the VM.";

impl AllFormats for PagesReport<'_> {
    fn text(&self, look: TextLayout, out: &mut dyn Write) -> io::Result<()> {
        let TextLayout { color, width } = look;
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
            self.table(&mut notes).text((paint, width), out)?;
        }
        notes.extend(self.remarks());
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

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        self.table(&mut Vec::new()).csv(out)
    }

    fn html(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut notes = Vec::new();
        let table = self.table(&mut notes);
        notes.extend(self.remarks());
        let section = TableSection { id: "pages", title: "Pages by size", notes, table: &table };
        // Without rows the answer is all there is.
        let parts: Vec<TableSection<'_>> =
            if self.vms.is_empty() { Vec::new() } else { vec![section] };
        let page = TablePage {
            command: "doctor --pages",
            tool_version: self.tool_version,
            facts: vec![
                ("system", self.root.to_owned()),
                ("KVM", crate::kvm::line(&self.system.kvm)),
            ],
            answer: self.answer(),
            emulation: None,
        };
        page.write(&parts, out)
    }

    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        let document = Cell::Object(vec![
            ("schema", Cell::Word(SCHEMA)),
            ("tool", tool(self.tool_version)),
            ("root", Cell::Name(self.root.to_owned())),
            ("kvm", crate::kvm::object(&self.system.kvm)),
            ("hidden_processes", Cell::Count(self.system.hidden)),
            ("vms", Cell::List(self.vms.iter().map(object).collect())),
        ]);
        crate::json::write(&document, out)
    }
}

impl PagesReport<'_> {
    /// What KVM mapped for each VM.
    fn answer(&self) -> Vec<String> {
        if self.vms.is_empty() {
            let none = match self.system.listed {
                true => "No running VM was found.",
                false => "There is no list of processes.",
            };
            return std::iter::once(none.to_owned()).chain(self.remarks()).collect();
        }
        let large = |vm: &VmProcess| {
            let mapped = vm.mapped().value.ok()?;
            share(mapped.large(), mapped.total())
        };
        let one = |vm: &VmProcess| match large(vm) {
            Some(share) => format!(
                "{}: {} of what KVM mapped is in pages of 2 MiB and more.",
                vm_name(vm),
                percent(share)
            ),
            None => format!("{}: the sizes that KVM mapped are not known.", vm_name(vm)),
        };
        self.vms.iter().take(LISTED).map(one).collect()
    }

    /// Said below the table.
    fn remarks(&self) -> Vec<String> {
        let mut said = Vec::new();
        if !self.vms.is_empty() {
            said.push(NO_STATS_FD.to_owned());
            said.push("Memory is all of the VMM's mappings of 2 MiB and more.".to_owned());
        }
        if self.system.hidden > 0 {
            said.push(hidden(self.system.hidden));
        }
        said
    }

    fn table(&self, notes: &mut Vec<String>) -> Table {
        let lines = self.vms.iter().flat_map(|vm| [mapped_line(vm), backing_line(vm)]);
        let lines: Vec<PagesLine<'_>> = lines.collect();
        let unread = lines.iter().filter_map(|line| line.sizes.as_ref().err());
        notes.extend(unread.map(|(path, why)| note(path, why)));
        let kind = |line: &PagesLine<'_>| audit::kind(line.vm).name();
        let size = |line: &PagesLine<'_>, size: fn(&Sizes) -> Option<u64>| match &line.sizes {
            Ok(sizes) => Cell::of(size(sizes), Cell::Bytes),
            Err(_) => Cell::Unknown("?"),
        };
        Table::of(lines)
            .grouped(|line| format!("{}, {}", vm_name(line.vm), kind(line)))
            .column(Column::data("pid"), |line| Cell::Count(line.vm.pid.into()))
            .column(Column::data("name"), |line| Cell::Name(line.vm.name.clone()))
            .column(Column::data("kind"), |line| Cell::Word(kind(line)))
            .column(Column::words("what", "VM"), |line| Cell::Word(line.what))
            .column(Column::number("all", "all"), |line| size(line, |sizes| Some(sizes.all)))
            .column(Column::number("bytes_4k", "4K"), |line| size(line, |sizes| Some(sizes.small)))
            .column(Column::number("bytes_2m", "2M"), |line| size(line, |sizes| sizes.large))
            .column(Column::number("bytes_1g", "1G"), |line| size(line, |sizes| sizes.largest))
            .column(Column::number("thp", "THP").help("transparent huge pages"), |line| {
                size(line, |sizes| sizes.thp)
            })
            .column(Column::number("hugetlbfs", "hugetlbfs"), |line| {
                size(line, |sizes| sizes.hugetlbfs)
            })
            .column(
                Column::number("large", "large").help("share in pages of 2 MiB and more"),
                |line| match &line.sizes {
                    Ok(sizes) => Cell::of(sizes.share, Cell::Share),
                    Err(_) => Cell::Unknown("?"),
                },
            )
            .table()
    }
}

/// A line of the table: where the pages are, and their sizes, or the file that could not be read.
struct PagesLine<'a> {
    vm: &'a VmProcess,
    what: &'static str,
    sizes: Result<Sizes, (String, Unknown)>,
}

/// Bytes by size of page; `None` where the file does not have it.
struct Sizes {
    all: u64,
    small: u64,
    large: Option<u64>,
    largest: Option<u64>,
    thp: Option<u64>,
    hugetlbfs: Option<u64>,
    /// In pages of 2 MiB and more, of all.
    share: Option<f64>,
}

fn mapped_line(vm: &VmProcess) -> PagesLine<'_> {
    let sizes = |mapped: KvmMapped| {
        let [small, large, largest] = mapped.bytes();
        Sizes {
            all: mapped.total(),
            small,
            large: Some(large),
            largest: Some(largest),
            thp: None,
            hugetlbfs: None,
            share: share(mapped.large(), mapped.total()),
        }
    };
    let Fact { path, value } = vm.mapped();
    PagesLine { vm, what: "mapped in EPT/NPT", sizes: value.map(sizes).map_err(|why| (path, why)) }
}

fn backing_line(vm: &VmProcess) -> PagesLine<'_> {
    let sizes = |backing: MemoryBacking| Sizes {
        all: backing.resident,
        small: backing.resident.saturating_sub(backing.large()),
        large: None,
        largest: None,
        thp: Some(backing.anon_thp.saturating_add(backing.shmem_thp)),
        hugetlbfs: Some(backing.hugetlb),
        share: share(backing.large(), backing.resident),
    };
    let Fact { path, value } = vm.backing.clone();
    PagesLine { vm, what: "memory of the VMM", sizes: value.map(sizes).map_err(|why| (path, why)) }
}

/// Why something is not known, and what to do.
fn note(path: &str, why: &Unknown) -> String {
    let is_debugfs = path.starts_with("/sys/kernel/debug/");
    let what = match why {
        Unknown::Denied => "run as root".to_owned(),
        Unknown::Missing if is_debugfs => {
            "mount -t debugfs none /sys/kernel/debug; kernels before 5.15 have no such counters"
                .to_owned()
        }
        _ => "no action needed".to_owned(),
    };
    printable(&format!("{path}: {why}; {what}."))
}

fn object(vm: &VmProcess) -> Cell {
    let mapped = vm.mapped();
    let unknown = |why: &Unknown| Cell::Name(why.to_string());
    let by_size =
        |at: usize| Cell::of(mapped.value.as_ref().ok(), |mapped| Cell::Count(mapped.bytes()[at]));
    let of_backing = |part: fn(&MemoryBacking) -> u64| {
        Cell::of(vm.backing.value.as_ref().ok(), |backing| Cell::Count(part(backing)))
    };
    let mut fields = vm_fields(vm);
    fields.push((
        "mapped",
        Cell::Object(vec![
            ("path", Cell::Name(mapped.path.clone())),
            ("unknown", Cell::of(mapped.value.as_ref().err(), unknown)),
            ("bytes_4k", by_size(0)),
            ("bytes_2m", by_size(1)),
            ("bytes_1g", by_size(2)),
        ]),
    ));
    fields.push((
        "backing",
        Cell::Object(vec![
            ("path", Cell::Name(vm.backing.path.clone())),
            ("unknown", Cell::of(vm.backing.value.as_ref().err(), unknown)),
            ("resident", of_backing(|backing| backing.resident)),
            ("anon_thp", of_backing(|backing| backing.anon_thp)),
            ("shmem_thp", of_backing(|backing| backing.shmem_thp)),
            ("hugetlb", of_backing(|backing| backing.hugetlb)),
            ("shared", of_backing(|backing| backing.shared)),
            ("not_eligible", of_backing(|backing| backing.not_eligible)),
        ]),
    ));
    Cell::Object(fields)
}
