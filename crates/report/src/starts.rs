//! `vmtax record --starts`: how long VMs took to start, and in which calls of KVM.

use serde_json::json;
use vmtax_analyse::starts::{StartedVm, Step, steps_of_all};

use crate::table::{Cell, Column, Table};
use crate::tables::{Tables, TitledTable};

#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// The VMs that were created.
    pub vms: Vec<StartedVm>,
    /// The name of each, in the same order.
    pub names: Vec<String>,
    /// The cgroup of each, in the same order; empty where it is not known.
    pub cgroups: Vec<String>,
    /// How long was recorded, ns.
    pub ns: u64,
    pub kernel: String,
    /// The emulator, if the host runs under one.
    pub emulated: Option<String>,
    /// Times off the CPU are known.
    pub has_off_cpu: bool,
    /// What could not be recorded, as sentences.
    pub losses: Vec<String>,
}

/// More VMs have no steps of their own in a terminal.
const MOST_SHOWN: usize = 8;

const STARTS: &str = "start: from KVM_CREATE_VM to the first KVM_RUN; in KVM: in its calls of that time, of all threads; off CPU: of that, waiting or preempted.";
const STEPS: &str = "off CPU: of the total, waiting or preempted; where: the functions of the longest such time. KVM_RUN only the first of each vCPU.";

/// The tables; for people a table of each VM's steps only where there are few.
pub fn tables(recorded: &Recorded, is_terminal: bool) -> serde_json::Result<Tables> {
    let Recorded { vms, losses, .. } = recorded;
    let all = steps_of_all(vms);
    let all_steps: Vec<(&str, &Step)> = all.iter().map(|step| ("", step)).collect();
    let own: Vec<(&str, &Step)> = vms
        .iter()
        .zip(&recorded.names)
        .flat_map(|(vm, name)| vm.steps.iter().map(move |step| (name.as_str(), step)))
        .collect();
    let section = |id, title: &str, note: &str, table| TitledTable {
        id,
        title: title.to_owned(),
        notes: vec![note.to_owned()],
        table,
    };
    let mut sections = vec![section("starts", "Starts", STARTS, starts(recorded))];
    if vms.len() > 1 {
        sections.push(section("steps", "Steps of all VMs", STEPS, steps(recorded, &all_steps)));
    }
    if vms.len() == 1 || !is_terminal || vms.len() <= MOST_SHOWN {
        sections.push(section("vm_steps", "Steps of each VM", STEPS, steps(recorded, &own)));
    }
    let lost = if losses.is_empty() { "none known".to_owned() } else { losses.join("; ") };
    let count = match vms.len() {
        1 => "1 VM was created".to_owned(),
        count => format!("{count} VMs were created"),
    };
    let said = format!("{count} in {:.1} s", recorded.ns as f64 / 1e9);
    let tables = Tables {
        command: "record --starts",
        tool_version: env!("CARGO_PKG_VERSION"),
        facts: vec![("Recorded", said), ("Kernel", recorded.kernel.clone()), ("Losses", lost)],
        answer: Vec::new(),
        emulation: recorded
            .emulated
            .as_ref()
            .map(|emulator| format!("Recorded under {emulator}: times do not reflect hardware.")),
        sections,
        json: json!({
            "recorded_ns": recorded.ns,
            "kernel": recorded.kernel,
            "emulated": recorded.emulated,
            "losses": losses,
        }),
    };
    tables.with_rows_as_json("vmtax-starts-1")
}

fn off_cpu(recorded: &Recorded, ns: u64) -> Cell {
    Cell::of(recorded.has_off_cpu.then_some(ns), Cell::Time)
}

fn starts(recorded: &Recorded) -> Table {
    let rows = recorded.vms.iter().zip(&recorded.names).zip(&recorded.cgroups);
    let time = |name: &str, vm: &StartedVm| {
        let step = vm.steps.iter().find(|step| step.name == name);
        Cell::of(step, |step| Cell::Time(step.total_ns))
    };
    Table::of(rows)
        .column(Column::words("vm", "VM"), |((_, name), _)| Cell::Name((*name).clone()))
        .column(Column::number("pid", "pid"), |((vm, _), _)| Cell::Count(vm.pid.into()))
        .column(Column::words("cgroup", "cgroup"), |(_, cgroup)| Cell::Name((*cgroup).clone()))
        .column(Column::number("start_ns", "start"), |((vm, _), _)| {
            Cell::of(vm.start_ns, Cell::Time)
        })
        .column(Column::number("in_kvm_ns", "in KVM"), |((vm, _), _)| Cell::Time(vm.in_calls_ns))
        .column(Column::number("off_cpu_ns", "off CPU"), |((vm, _), _)| {
            off_cpu(recorded, vm.off_cpu_ns)
        })
        .column(Column::number("create_vm_ns", "create"), |((vm, _), _)| time("KVM_CREATE_VM", vm))
        .column(Column::number("first_run_ns", "first run"), |((vm, _), _)| {
            time("KVM_RUN, first", vm)
        })
        .column(Column::number("close_ns", "close"), |((vm, _), _)| time("close of the VM", vm))
        .table()
}

fn steps(recorded: &Recorded, rows: &[(&str, &Step)]) -> Table {
    let has_vms = rows.iter().any(|(vm, _)| !vm.is_empty());
    let mut table = Table::of(rows);
    if has_vms {
        table = table.column(Column::words("vm", "VM"), |(vm, _)| Cell::Name((*vm).to_owned()));
    }
    table
        .column(Column::words("step", "step"), |(_, step)| Cell::Name(step.name.clone()))
        .column(Column::number("count", "count"), |(_, step)| Cell::Count(step.count))
        .column(Column::data("failed"), |(_, step)| Cell::Count(step.failed))
        .column(Column::number("total_ns", "total"), |(_, step)| Cell::Time(step.total_ns))
        .column(Column::number("max_ns", "max"), |(_, step)| Cell::Time(step.max_ns))
        .column(Column::number("off_cpu_ns", "off CPU"), |(_, step)| {
            off_cpu(recorded, step.off_cpu_ns)
        })
        .column(Column::list("where", "where"), |(_, step)| {
            let word = |(at, name): (usize, &String)| {
                if at == 0 { name.clone() } else { format!("< {name}") }
            };
            Cell::Words(step.place.iter().enumerate().map(word).collect())
        })
        .table()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::AllFormats;
    use crate::text::TextLayout;

    fn recorded(count: u32) -> Recorded {
        let step = |name: &str, total_ns, place: &[&str]| Step {
            name: name.to_owned(),
            count: 1,
            total_ns,
            max_ns: total_ns,
            off_cpu_ns: total_ns / 2,
            longest_ns: total_ns / 2,
            place: place.iter().map(|name| (*name).to_owned()).collect(),
            ..Step::default()
        };
        let vm = |number| StartedVm {
            pid: 100 + number,
            start_ns: Some(12_000_000),
            steps: vec![
                step("KVM_CREATE_VM", 10_000_000, &["synchronize_rcu", "kvm_dev_ioctl"]),
                step("KVM_RUN, first", 80_000, &[]),
            ],
            ..StartedVm::default()
        };
        Recorded {
            vms: (0..count).map(vm).collect(),
            names: (0..count).map(|number| format!("web{number}")).collect(),
            cgroups: (0..count).map(|_| "/machine.slice".to_owned()).collect(),
            ns: 2_000_000_000,
            kernel: "6.1.0".to_owned(),
            emulated: Some("QEMU TCG".to_owned()),
            has_off_cpu: true,
            losses: Vec::new(),
        }
    }

    fn text(count: u32) -> String {
        let mut out = Vec::new();
        let tables = tables(&recorded(count), true).unwrap();
        tables.text(TextLayout { color: false, width: Some(160) }, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_vm_has_its_steps_and_many_have_theirs_together() {
        let one = text(1);
        for words in [
            "1 VM was created in 2.0 s",
            "web0",
            "synchronize_rcu < kvm_dev_ioctl",
            "under QEMU TCG",
        ] {
            assert!(one.contains(words), "{words}: {one}");
        }
        assert!(one.contains("Steps of each VM") && !one.contains("Steps of all VMs"), "{one}");
        let two = text(2);
        assert!(two.contains("Steps of each VM") && two.contains("Steps of all VMs"), "{two}");
        let many = text(20);
        assert!(!many.contains("Steps of each VM") && many.contains("Steps of all VMs"), "{many}");
        let json = tables(&recorded(20), false).unwrap().json;
        assert_eq!(json["vm_steps"].as_array().map(Vec::len), Some(40));
        assert_eq!(json["steps"][0]["total_ns"], 200_000_000);
        assert!(text(0).contains("0 VMs were created"));
    }
}
