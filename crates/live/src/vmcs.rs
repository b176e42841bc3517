//! Probes that name the VMCS fields which a guest hypervisor reads and writes.
//!
//! No tracepoint says them. Where in KVM's code the field's number is in which register the caller knows ([`crate::probe`] finds
//! it in the module's machine code); a kprobe there needs no more than the tracepoints do,
//! unless the kernel is a distribution's that keeps perf_event_open to CAP_SYS_ADMIN.

use std::ffi::CString;
use std::ptr::NonNull;

use libbpf_rs::{AsRawLibbpf, Link, Object, libbpf_sys};

use crate::layout::{Config, VMCS_PROBES};

/// A place in KVM's code where a VMCS field's number is in a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmcsPlace {
    /// Of a VMWRITE, not of a VMREAD.
    pub write: bool,
    /// The function, as `kvm_intel:handle_vmread`.
    pub function: String,
    /// Bytes from its start.
    pub offset: u64,
    /// The register as `kprobe_events` calls it: `ax`, `r15`.
    pub register: &'static str,
}

/// Registers in the order of `struct pt_regs` (Linux `arch/x86/include/asm/ptrace.h`); "" where there is no register.
const REGISTERS: [&str; 20] = [
    "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di",
    "", "", "", "", "sp",
];

/// A program's number and the place that it is for. Half of the programs are for reads.
#[derive(Default)]
pub(crate) struct Planned(Vec<(usize, VmcsPlace)>);

/// Gives every place a program, and tells the programs the registers.
pub(crate) fn plan(places: &[VmcsPlace], config: &mut Config) -> Result<Planned, String> {
    let mut next = [0, VMCS_PROBES / 2];
    let mut planned = Vec::new();
    for place in places {
        let number = &mut next[usize::from(place.write)];
        let register = REGISTERS
            .iter()
            .position(|register| *register == place.register && !register.is_empty());
        let register =
            register.ok_or_else(|| format!("{} is in no known register", place.function))?;
        let most = if place.write { VMCS_PROBES } else { VMCS_PROBES / 2 };
        if *number == most {
            return Err(format!(
                "{} has more than {} places that know it",
                place.function,
                VMCS_PROBES / 2
            ));
        }
        config.vmcs_register[*number] = 8 * register as u32;
        planned.push((*number, place.clone()));
        *number += 1;
    }
    Ok(Planned(planned))
}

impl Planned {
    /// Whether a program of this name is to be loaded.
    pub(crate) fn wants(&self, program: &str) -> bool {
        self.0.iter().any(|(number, _)| program == name(*number))
    }

    /// Puts all probes into the kernel, or none.
    pub(crate) fn attach(&self, object: &Object) -> Result<Vec<Link>, String> {
        self.0.iter().map(|(number, place)| attach(object, *number, place)).collect()
    }
}

fn name(number: usize) -> String {
    format!("on_vmcs_{number}")
}

fn attach(object: &Object, number: usize, place: &VmcsPlace) -> Result<Link, String> {
    let program = object.progs().find(|program| program.name().to_str() == Some(&name(number)));
    let program = program.ok_or("the program for it is missing")?;
    let function =
        CString::new(place.function.as_str()).map_err(|_| "its function has no name".to_owned())?;
    let options = libbpf_sys::bpf_kprobe_opts {
        sz: size_of::<libbpf_sys::bpf_kprobe_opts>() as libbpf_sys::size_t,
        offset: place.offset as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: the program lives as long as the object, function and options until the call is over.
    #[expect(unsafe_code, reason = "libbpf-rs has no offsets of kprobes")]
    let link = unsafe {
        libbpf_sys::bpf_program__attach_kprobe_opts(
            program.as_libbpf_object().as_ptr(),
            function.as_ptr(),
            &raw const options,
        )
    };
    let error = std::io::Error::last_os_error();
    let link = NonNull::new(link).ok_or_else(|| {
        let help = match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                "; where kernel.perf_event_paranoid is above 2 a probe takes CAP_SYS_ADMIN"
            }
            _ => "",
        };
        format!("{}+{:#x}: {error}{help}", place.function, place.offset)
    })?;
    // SAFETY: libbpf made it, and no other code has it.
    #[expect(unsafe_code, reason = "libbpf-rs has no offsets of kprobes")]
    let link = unsafe { Link::from_ptr(link) };
    Ok(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(write: bool, register: &'static str) -> VmcsPlace {
        VmcsPlace { write, function: "kvm_intel:handle".to_owned(), offset: 8, register }
    }

    #[test]
    fn programs_know_their_registers() {
        let mut config = Config::default();
        let places = [place(false, "r15"), place(true, "bp"), place(true, "di")];
        let planned = plan(&places, &mut config).unwrap();
        assert_eq!(config.vmcs_register, [0, 0, 32, 112]);
        let wanted = ["on_vmcs_0", "on_vmcs_1", "on_vmcs_2", "on_vmcs_3", "on_kvm_exit"];
        assert_eq!(wanted.map(|name| planned.wants(name)), [true, false, true, true, false]);
    }

    #[test]
    fn handlers_that_cannot_be_probed_are_reported() {
        let error = |places: &[VmcsPlace]| plan(places, &mut Config::default()).err();
        let more = error(&[place(false, "ax"), place(false, "ax"), place(false, "ax")]);
        assert_eq!(more.as_deref(), Some("kvm_intel:handle has more than 2 places that know it"));
        assert!(error(&[place(false, "")]).is_some() && error(&[place(true, "flags")]).is_some());
        assert_eq!(error(&[]), None);
    }
}
