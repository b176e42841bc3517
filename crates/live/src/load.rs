//! Has the kernel take the programs of `kvm_exit.bpf.c` and call them.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{
    ErrorKind, Link, MapCore, MapFlags, Object, ObjectBuilder, OpenObject, PrintLevel,
    TracepointCategory,
};
use vmtax_events::{Coverage, Isa};

use crate::layout::Config;
use crate::vmcs::Planned;
use crate::{Error, Options, classic, memory};

/// The programs, compiled with this crate for each processor and each kind of tracepoint.
macro_rules! programs {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/kvm_exit.", $name, ".o"))
    };
}
const OF_VMX: &[u8] = programs!("vmx");
const OF_SVM: &[u8] = programs!("svm");
const OF_VMX_CLASSIC: &[u8] = programs!("vmx.classic");
const OF_SVM_CLASSIC: &[u8] = programs!("svm.classic");

/// What is loaded.
pub(crate) struct Wanted<'a> {
    pub(crate) isa: Isa,
    pub(crate) is_classic: bool,
    pub(crate) config: &'a Config,
    pub(crate) probes: &'a Planned,
    pub(crate) options: &'a Options,
}

/// What libbpf said: of a refused program the verifier's words.
static SAID: Mutex<String> = Mutex::new(String::new());

/// Loads the programs.
pub(crate) fn load(wanted: &Wanted<'_>) -> Result<Object, Error> {
    libbpf_rs::set_print(Some((PrintLevel::Warn, |_, line| {
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        said.push_str(&line);
    })));
    let programs = match (wanted.isa == Isa::Svm, wanted.is_classic) {
        (true, false) => OF_SVM,
        (true, true) => OF_SVM_CLASSIC,
        (false, false) => OF_VMX,
        (false, true) => OF_VMX_CLASSIC,
    };
    let failed = |source| Error::Load { source, said: said() };
    let mut open = ObjectBuilder::default().open_memory(programs).map_err(failed)?;
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

fn size_maps(open: &mut OpenObject, config: &Config, options: &Options) -> libbpf_rs::Result<()> {
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
                let bytes = memory::bytes(config);
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
fn said() -> String {
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let before = said.lines().take_while(|line| !line.starts_with("processed "));
    let word =
        before.map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("-- ")).last();
    word.map_or_else(String::new, |word| format!(": {word}"))
}

/// Attaches the programs; what they can see.
pub(crate) fn attach(object: &Object, is_classic: bool) -> Result<(Vec<Link>, Coverage), Error> {
    let (mut links, mut coverage) = (Vec::new(), Coverage::default());
    for tracepoint in &classic::ALL {
        let name = format!("on_{}", tracepoint.name);
        let program =
            object.progs_mut().find(|program| program.name().to_str() == Some(name.as_str()));
        let Some(program) = program else { continue };
        let attached = if is_classic {
            let system = TracepointCategory::Custom(tracepoint.system.to_owned());
            program.attach_tracepoint(system, tracepoint.name)
        } else {
            program.attach_raw_tracepoint(tracepoint.name)
        };
        match attached {
            Ok(link) => {
                coverage.add(tracepoint.name);
                links.push(link);
            }
            Err(error) if error.kind() == ErrorKind::NotFound && !tracepoint.needed => {}
            Err(source) => return Err(Error::Attach { tracepoint: tracepoint.name, source }),
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
