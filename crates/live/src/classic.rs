//! Classic tracepoints: where their records have the numbers that programs read, from the kernel's format files.
//!
//! For kernels without BTF of their modules. One such is still supported: Linux 5.10 (Debian 11), since modules have BTF
//! only from 5.11 on and distributions build KVM as modules; likewise any kernel built without `CONFIG_DEBUG_INFO_BTF`.
//! It costs more than raw tracepoints, because the kernel fills a record for every event, and it cannot tell VMs of one
//! process apart.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::layout::{Config, FIELDS, Field, TRACEPOINTS};

/// A tracepoint that programs sit on.
pub(crate) struct Tracepoint {
    /// Its system in tracefs.
    pub(crate) system: &'static str,
    pub(crate) name: &'static str,
    /// Nothing can be counted without it; others may be missing in a kernel.
    pub(crate) needed: bool,
    /// Fields of its record, as classic.bpf.h numbers them.
    fields: &'static [&'static str],
}

const fn kvm(name: &'static str, fields: &'static [&'static str]) -> Tracepoint {
    Tracepoint { system: "kvm", name, needed: false, fields }
}

/// In the order in which they are attached: what tells of an exit before the exit itself. Names of fields as in Linux
/// `arch/x86/kvm/trace.h`, `include/trace/events/kvm.h` and `include/trace/events/sched.h`.
pub(crate) const ALL: [Tracepoint; TRACEPOINTS] = [
    Tracepoint { system: "sched", ..kvm("sched_process_exit", &[]) },
    Tracepoint {
        system: "sched",
        needed: true,
        ..kvm("sched_switch", &["prev_state", "next_pid"])
    },
    kvm("kvm_nested_vmrun", &[]),
    kvm("kvm_nested_vmenter", &[]),
    kvm("kvm_nested_vmexit", &[]),
    kvm("kvm_nested_vmexit_inject", &["exit_code"]),
    kvm("kvm_vcpu_wakeup", &["ns", "waited"]),
    kvm("kvm_vm_set_mem_attributes", &["start", "end", "attr"]),
    Tracepoint { system: "kvmmmu", ..kvm("kvm_mmu_spte_requested", &["gfn", "level"]) },
    kvm("kvm_userspace_exit", &["reason", "errno"]),
    kvm("kvm_vmgexit_enter", &["exit_reason", "info1", "info2"]),
    kvm("kvm_vmgexit_msr_protocol_enter", &["ghcb_gpa"]),
    kvm("kvm_apic", &["rw", "reg", "val"]),
    kvm("kvm_cr", &["rw", "cr", "val"]),
    kvm("kvm_cpuid", &["function", "index"]),
    kvm("kvm_page_fault", &["fault_address", "error_code"]),
    kvm("kvm_xen_hypercall", &["nr"]),
    kvm("kvm_hv_hypercall", &["code"]),
    kvm("kvm_hypercall", &["nr"]),
    kvm("kvm_fast_mmio", &["gpa"]),
    kvm("kvm_mmio", &["type", "len", "gpa"]),
    kvm("kvm_pio", &["rw", "port", "size", "count"]),
    kvm("kvm_msr", &["write", "ecx", "data"]),
    Tracepoint { needed: true, ..kvm("kvm_entry", &["vcpu_id"]) },
    Tracepoint {
        needed: true,
        ..kvm("kvm_exit", &["vcpu_id", "exit_reason", "info1", "info2", "intr_info"])
    },
];

/// Where tracefs is; the second is its place until Linux 4.1.
const PLACES: [&str; 2] = ["sys/kernel/tracing/events", "sys/kernel/debug/tracing/events"];

/// The part of the configuration that format files give.
pub(crate) fn config(root: &Path) -> Result<Config, Error> {
    let folders = PLACES.map(|place| root.join(place));
    let folder = folders.iter().find(|folder| folder.join("kvm").exists()).unwrap_or(&folders[0]);
    let mut config = Config::default();
    for (slots, tracepoint) in config.fields.iter_mut().zip(&ALL) {
        let path = folder.join(tracepoint.system).join(tracepoint.name).join("format");
        match fs::read_to_string(&path) {
            Ok(text) => *slots = fields(&path, &text, tracepoint)?,
            Err(source) if source.kind() == io::ErrorKind::NotFound && !tracepoint.needed => {}
            Err(source) => return Err(Error::NoFormats { path, source }),
        }
    }
    Ok(config)
}

fn fields(path: &Path, text: &str, of: &Tracepoint) -> Result<[Field; FIELDS], Error> {
    let mut fields = [Field::default(); FIELDS];
    for (slot, name) in fields.iter_mut().zip(of.fields) {
        let found = text.lines().find_map(|line| field(line, name));
        // Records of older kernels lack the vCPU or other fields; a record without a reason is not used.
        if found.is_none() && of.needed && *name != "vcpu_id" && !name.contains("info") {
            let problem = format!("has no field {name} that can be read");
            return Err(Error::Types { path: PathBuf::from(path), problem });
        }
        *slot = found.unwrap_or_default();
    }
    Ok(fields)
}

/// `field:unsigned int exit_reason; offset:8; size:4; signed:0;`
fn field(line: &str, name: &str) -> Option<Field> {
    let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
    let declared = parts.next()?;
    if declared.rsplit([' ', '\t', '*']).next()? != name || declared.contains("__data_loc") {
        return None;
    }
    let (mut offset, mut size) = (None, None);
    for part in parts {
        match part.split_once(':') {
            Some(("offset", number)) => offset = number.parse().ok(),
            Some(("size", number)) => size = number.parse().ok(),
            _ => {}
        }
    }
    let size = size.filter(|size| matches!(size, 1 | 2 | 4 | 8))?;
    Some(Field { offset: offset?, size })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXIT: &str = "name: kvm_exit\nID: 1419\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:unsigned int exit_reason;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:u64 info1;\toffset:32;\tsize:8;\tsigned:0;\n\
        \tfield:u32 intr_info;\toffset:48;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned int vcpu_id;\toffset:56;\tsize:4;\tsigned:0;\n\n\
        print fmt: \"x\"\n";

    #[test]
    fn numbers_are_found_by_name() {
        let found = fields(Path::new("format"), EXIT, &ALL[TRACEPOINTS - 1]).unwrap();
        let at = |offset, size| Field { offset, size };
        assert_eq!(found, [at(56, 4), at(8, 4), at(32, 8), Field::default(), at(48, 4)]);
        let damaged = EXIT.replace("size:4", "size:3");
        let error = fields(Path::new("format"), &damaged, &ALL[TRACEPOINTS - 1]).unwrap_err();
        assert!(error.to_string().contains("has no field exit_reason"), "{error}");
    }

    #[test]
    fn missing_tracepoints_are_left_out() {
        let root = tempfile::tempdir().unwrap();
        let error = config(root.path()).unwrap_err().to_string();
        assert!(error.contains("sched_switch/format"), "{error}");
        let add = |path: &str, text: &str| {
            let folder = root.path().join(PLACES[0]).join(path);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("format"), text).unwrap();
        };
        add("kvm/kvm_exit", EXIT);
        add("kvm/kvm_entry", "name: kvm_entry\n");
        add(
            "sched/sched_switch",
            "\tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n\
             \tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;\n",
        );
        let config = config(root.path()).unwrap();
        assert_eq!(
            config.fields[1][..2],
            [Field { offset: 32, size: 8 }, Field { offset: 56, size: 4 }]
        );
        assert_eq!(config.fields[20], [Field::default(); FIELDS]);
    }
}
