//! Loads `vm_start.bpf.c` and reads the calls that it timed.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::path::Path;

use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, OpenObject, RingBufferBuilder};
use vmtax_events::start::{KvmCall, KvmFile};

use crate::layout::{StartCall, StartConfig, StartTotals, command};
use crate::load::{map, refused, said, tell};
use crate::mapped_array::{self, MappedArray};
use crate::{Error, kernel, privileges};

const PROGRAMS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vm_start.o"));

/// Functions of KVM, each with a program of its own at its beginning; at their return they have one in common.
const FUNCTIONS: [&str; 5] =
    ["kvm_dev_ioctl", "kvm_vm_ioctl", "kvm_vcpu_ioctl", "kvm_vm_release", "kvm_vcpu_release"];
const RETURN: &str = "on_return";
const SWITCH: &str = "sched_switch";

/// Room for calls that were not read yet: 14,000 of them.
const RING: u32 = 4 << 20;

/// Times the calls that create, start and destroy VMs, for as long as it lives.
pub struct Starts {
    totals: MappedArray<StartTotals>,
    /// Links come off before the programs and maps go.
    links: Vec<Link>,
    object: Object,
}

impl Starts {
    /// Loads the programs, and has them called; calls that begin from now on are timed. Those of all processes, if none are given.
    ///
    /// # Errors
    /// One sentence on what is missing.
    pub fn new(root: &Path, processes: Option<&BTreeSet<u32>>) -> Result<Starts, Error> {
        privileges::check()?;
        let config =
            StartConfig { filtered: u32::from(processes.is_some()), ..kernel::start_config(root)? };
        tell();
        let failed = |source| Error::Load { source, said: said() };
        let mut open = ObjectBuilder::default().open_memory(PROGRAMS).map_err(failed)?;
        size_maps(&mut open, &config, processes).map_err(failed)?;
        let object = open.load().map_err(failed)?;
        for pid in processes.into_iter().flatten() {
            map(&object, "wanted")?
                .update(&pid.to_le_bytes(), &[1], MapFlags::ANY)
                .map_err(refused("wanted", "add a process"))?;
        }
        let totals = MappedArray::new(map(&object, ".bss")?.as_fd(), "totals", 1)?;
        let links = attach(&object)?;
        totals.write_part(0, offset_of!(StartTotals, on), 1_u32);
        Ok(Starts { totals, links, object })
    }

    /// The calls that returned since the last time, in the order of their returns.
    pub fn calls(&self) -> Result<Vec<KvmCall>, Error> {
        let mut calls = Vec::new();
        let failed = refused("ring", "receive calls");
        let ring = map(&self.object, "ring")?;
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&ring, |bytes| {
                calls.extend(mapped_array::read::<StartCall>(bytes).as_ref().and_then(call));
                0
            })
            .map_err(&failed)?;
        let ring = builder.build().map_err(&failed)?;
        ring.consume().map_err(&failed)?;
        drop(ring);
        calls.sort_by_key(|call: &KvmCall| call.began_ns.saturating_add(call.ns));
        Ok(calls)
    }

    /// Calls that there was no room for.
    pub fn lost(&self) -> u64 {
        self.totals.read(0).lost
    }

    pub fn stop(&mut self) {
        self.links.clear();
    }
}

fn size_maps(
    open: &mut OpenObject,
    config: &StartConfig,
    processes: Option<&BTreeSet<u32>>,
) -> libbpf_rs::Result<()> {
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        match name.as_str() {
            "ring" => map.set_max_entries(RING)?,
            "wanted" => map.set_max_entries(processes.map_or(0, BTreeSet::len).max(1) as u32)?,
            _ if name.ends_with(".rodata") => {
                let bytes = mapped_array::bytes(config);
                if let Some(value) = map.initial_value_mut() {
                    value[..bytes.len()].copy_from_slice(bytes);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns are watched before beginnings, so that each that was seen to begin is seen to return.
fn attach(object: &Object) -> Result<Vec<Link>, Error> {
    let program = |name: &str, tracepoint: &'static str| {
        let source = libbpf_rs::Error::from(std::io::Error::from(std::io::ErrorKind::NotFound));
        let found = object.progs_mut().find(|program| program.name().to_str() == Some(name));
        found.ok_or(Error::Attach { tracepoint, source })
    };
    let refused = |tracepoint| move |source| Error::Attach { tracepoint, source };
    let mut links = Vec::new();
    for function in FUNCTIONS {
        let at = program(RETURN, function)?;
        links.push(at.attach_kprobe(true, function).map_err(refused(function))?);
    }
    let at = program("on_sched_switch", SWITCH)?;
    links.push(at.attach_raw_tracepoint(SWITCH).map_err(refused(SWITCH))?);
    for function in FUNCTIONS {
        let at = program(&format!("on_{function}"), function)?;
        links.push(at.attach_kprobe(false, function).map_err(refused(function))?);
    }
    Ok(links)
}

fn call(sent: &StartCall) -> Option<KvmCall> {
    let frames = sent.stack.iter().copied().take_while(|address| *address != 0);
    Some(KvmCall {
        began_ns: sent.start,
        ns: sent.ns,
        off_cpu_ns: sent.away,
        longest_ns: sent.longest,
        pid: (sent.id >> 32) as u32,
        tid: sent.id as u32,
        name: command(sent.name),
        cgroup: sent.cgroup,
        file: *KvmFile::ALL.get(sent.file as usize)?,
        vm: sent.vm,
        request: sent.request,
        undoes: sent.undo != 0,
        result: sent.result as i32,
        stack: frames.collect(),
    })
}
