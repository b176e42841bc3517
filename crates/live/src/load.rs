//! Has the kernel take the programs of `kvm_exit.bpf.c` and call them.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{
    ErrorKind, Link, MapCore, MapFlags, Object, ObjectBuilder, OpenObject, PrintLevel,
};
use vmtax_events::{Coverage, Isa};

use crate::layout::Config;
use crate::vmcs::Planned;
use crate::{Error, LiveOptions, mapped_array};

/// The programs, compiled with this crate for each processor.
macro_rules! programs {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/kvm_exit.", $name, ".o"))
    };
}
const OF_VMX: &[u8] = programs!("vmx");
const OF_SVM: &[u8] = programs!("svm");
const OF_ARM: &[u8] = programs!("arm");

fn programs(isa: Isa) -> &'static [u8] {
    match isa {
        Isa::Svm => OF_SVM,
        Isa::Arm => OF_ARM,
        Isa::Vmx | Isa::Unknown => OF_VMX,
    }
}

/// Raw tracepoints, in the order in which they are attached: what tells of an exit before the exit itself. Names as in Linux
/// `arch/x86/kvm/trace.h`, `arch/arm64/kvm/trace_arm.h` and `trace_handle_exit.h`, `include/trace/events/kvm.h` and `include/trace/events/sched.h`.
const TRACEPOINTS: [&str; 32] = [
    "sched_process_exit",
    "sched_switch",
    "kvm_nested_vmrun",
    "kvm_nested_vmenter",
    "kvm_nested_vmexit",
    "kvm_nested_vmexit_inject",
    "kvm_nested_eret",
    "kvm_inject_nested_exception",
    "kvm_vcpu_wakeup",
    "kvm_vm_set_mem_attributes",
    "kvm_mmu_spte_requested",
    "kvm_userspace_exit",
    "kvm_vmgexit_enter",
    "kvm_vmgexit_msr_protocol_enter",
    "kvm_apic",
    "kvm_cr",
    "kvm_cpuid",
    "kvm_page_fault",
    "kvm_xen_hypercall",
    "kvm_hv_hypercall",
    "kvm_hypercall",
    "kvm_fast_mmio",
    "kvm_mmio",
    "kvm_pio",
    "kvm_msr",
    "kvm_wfx_arm64",
    "kvm_hvc_arm64",
    "kvm_sys_access",
    "kvm_handle_sys_reg",
    "kvm_guest_fault",
    "kvm_entry",
    "kvm_exit",
];
/// Nothing can be counted without these; others may be missing in a kernel.
const NEEDED: [&str; 3] = ["sched_switch", "kvm_entry", "kvm_exit"];

pub(crate) struct WantedPrograms<'a> {
    pub(crate) isa: Isa,
    pub(crate) config: &'a Config,
    pub(crate) probes: &'a Planned,
    pub(crate) options: &'a LiveOptions,
}

/// What libbpf said: of a refused program the verifier's words.
static SAID: Mutex<String> = Mutex::new(String::new());

/// Has libbpf tell [`said`].
pub(crate) fn tell() {
    libbpf_rs::set_print(Some((PrintLevel::Warn, |_, line| {
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        said.push_str(&line);
    })));
}

pub(crate) fn load(wanted: &WantedPrograms<'_>) -> Result<Object, Error> {
    tell();
    let failed = |source| Error::Load { source, said: said() };
    let mut open = ObjectBuilder::default().open_memory(programs(wanted.isa)).map_err(failed)?;
    size_maps(&mut open, wanted.config, wanted.options).map_err(failed)?;
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        if name.starts_with("on_vmcs_") && !wanted.probes.wants(&name) {
            program.set_autoload(false);
        }
    }
    let object = open.load().map_err(failed)?;
    for pid in wanted.options.processes.iter().flatten() {
        map(&object, "wanted")?
            .update(&pid.to_le_bytes(), &[1], MapFlags::ANY)
            .map_err(refused("wanted", "add a process"))?;
    }
    Ok(object)
}

fn size_maps(
    open: &mut OpenObject,
    config: &Config,
    options: &LiveOptions,
) -> libbpf_rs::Result<()> {
    let processes = options.processes.as_ref().map_or(0, BTreeSet::len) as u32;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let entries = match name.as_str() {
            "threads" => config.threads + 1,
            "thread_of_tid" | "free_threads" => config.threads,
            "cells" => 2 * config.cells,
            "keys" | "cell_of_key" | "free_cells" => config.cells,
            "wanted" => processes.max(1),
            "ring" => options.raw.as_ref().map_or(4096, |raw| raw.buffer_bytes()),
            // Room for the events of an exit that may turn out to be a slow one.
            "held" if config.slower_ns > 0 => config.threads + 1,
            _ if name.ends_with(".rodata") => {
                let bytes = mapped_array::bytes(config);
                if let Some(value) = map.initial_value_mut() {
                    value[..bytes.len()].copy_from_slice(bytes);
                }
                continue;
            }
            _ => continue,
        };
        map.set_max_entries(entries)?;
    }
    Ok(())
}

/// The verifier's last word on the program, after a colon: what it says then is about itself.
pub(crate) fn said() -> String {
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let before = said.lines().take_while(|line| !line.starts_with("processed "));
    let word =
        before.map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("-- ")).last();
    word.map_or_else(String::new, |word| format!(": {word}"))
}

/// Attaches the programs; what they can see.
pub(crate) fn attach(object: &Object) -> Result<(Vec<Link>, Coverage), Error> {
    let (mut links, mut coverage) = (Vec::new(), Coverage::default());
    for tracepoint in TRACEPOINTS {
        let name = format!("on_{tracepoint}");
        let program =
            object.progs_mut().find(|program| program.name().to_str() == Some(name.as_str()));
        let Some(program) = program else { continue };
        match program.attach_raw_tracepoint(tracepoint) {
            Ok(link) => {
                coverage.add(tracepoint);
                links.push(link);
            }
            Err(error) if error.kind() == ErrorKind::NotFound && !NEEDED.contains(&tracepoint) => {}
            Err(source) => return Err(Error::Attach { tracepoint, source }),
        }
    }
    Ok((links, coverage))
}

/// A map by its name. libbpf puts the object's name before those of sections.
pub(crate) fn map<'a>(object: &'a Object, name: &'static str) -> Result<libbpf_rs::Map<'a>, Error> {
    object
        .maps()
        .find(|map| {
            let found = map.name().to_string_lossy();
            found == name || (name.starts_with('.') && found.ends_with(name))
        })
        .ok_or(Error::Map {
            map: name,
            what: "find it among those",
            source: std::io::ErrorKind::NotFound.into(),
        })
}

/// A map that does not take something.
pub(crate) fn refused(map: &'static str, what: &'static str) -> impl Fn(libbpf_rs::Error) -> Error {
    move |error| Error::Map { map, what, source: std::io::Error::other(error) }
}
