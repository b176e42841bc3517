//! Which KVM serves, in words.

use vmtax_events::setting::{Kvm, KvmModule, KvmServer, Unknown};

use crate::names::printable;
use crate::table::Cell;

/// Why exits cannot be recorded, as one sentence that says what to do; `None` where they can.
pub fn not_recordable(kvm: &Kvm) -> Option<String> {
    Some(match kvm.server() {
        KvmServer::Hardware(..) => return None,
        KvmServer::Other(module) => format!(
            "KVM is served by {} here, and vmtax knows the exits of kvm_intel and kvm_amd only; {}; record exits on a host \
             whose KVM is kvm_intel or kvm_amd",
            described(module),
            tracepoints(kvm)
        ),
        KvmServer::Unsupported(module) => format!(
            "{} is built into this kernel, but the processor's flags show no {}; enable virtualization in the firmware, or \
             record on the host that runs the VMs",
            module.name,
            if module.name == "kvm_amd" { "svm" } else { "vmx" }
        ),
        KvmServer::Unnamed if kvm.device => format!(
            "/dev/kvm is there, and neither kvm_intel nor kvm_amd is among the kernel's modules; {}; record exits on a host \
             whose KVM is kvm_intel or kvm_amd",
            tracepoints(kvm)
        ),
        KvmServer::Unnamed => "the module kvm is there without kvm_intel or kvm_amd, so no VM can run here; load one of them \
                               with modprobe, or record on the host that runs the VMs"
            .to_owned(),
        KvmServer::Nothing => "no KVM is here (no /dev/kvm, no module kvm); load kvm_intel or kvm_amd with modprobe, or record \
                               on the host that runs the VMs"
            .to_owned(),
        KvmServer::Unknown(why) => format!(
            "/sys/module: {why}; mount sysfs there, because the list of modules shows which KVM is active"
        ),
    })
}

/// The same for programs: whether /dev/kvm is there, the module that serves, and why exits cannot be recorded.
pub(crate) fn object(kvm: &Kvm) -> Cell {
    let module = match kvm.server() {
        KvmServer::Hardware(_, module) | KvmServer::Other(module) => Some(module),
        _ => None,
    };
    Cell::Object(vec![
        ("device", Cell::Flag(kvm.device)),
        ("module", Cell::of(module, |module| Cell::Name(module.name.clone()))),
        ("built_in", Cell::of(module, |module| Cell::Flag(module.built_in))),
        ("not_recordable", Cell::of(not_recordable(kvm), Cell::Name)),
    ])
}

/// Which KVM serves, for the head of a report.
pub(crate) fn line(kvm: &Kvm) -> String {
    match kvm.server() {
        KvmServer::Hardware(_, module) => described(module),
        KvmServer::Other(module) => {
            format!("{}, whose exits vmtax does not know", described(module))
        }
        KvmServer::Unsupported(module) => {
            format!("{}, but the processor's flags show no virtualization", described(module))
        }
        KvmServer::Unnamed if kvm.device => "/dev/kvm, served by an unknown module".to_owned(),
        KvmServer::Unnamed => {
            "the module kvm without kvm_intel or kvm_amd: no VM can run".to_owned()
        }
        KvmServer::Nothing => "none was found".to_owned(),
        KvmServer::Unknown(why) => format!("unknown: /sys/module: {why}"),
    }
}

fn described(module: &KvmModule) -> String {
    let how = if module.built_in { "built into the kernel" } else { "a module" };
    format!("{} ({how})", printable(&module.name))
}

fn tracepoints(kvm: &Kvm) -> String {
    match &kvm.tracepoints {
        Ok(folder) => format!(
            "KVM's tracepoints are in {folder}, and `perf stat -a -e 'kvm:*' sleep 10` counts those that it uses"
        ),
        Err(Unknown::Missing) => "tracefs shows no tracepoints of KVM".to_owned(),
        Err(why) => format!("KVM's tracepoints cannot be read ({why})"),
    }
}

#[cfg(test)]
mod tests {
    use vmtax_events::Isa;

    use super::*;

    fn kvm(modules: &[&str], device: bool, processor: Option<Isa>) -> Kvm {
        let module = |name: &&str| KvmModule { name: (*name).to_owned(), built_in: true };
        Kvm {
            device,
            modules: Ok(modules.iter().map(module).collect()),
            processor: Ok(processor),
            tracepoints: Ok("/sys/kernel/tracing/events/kvm".to_owned()),
        }
    }

    #[test]
    fn each_error_names_the_input_and_the_fix() {
        for (kvm, parts) in [
            (
                kvm(&["kvm", "kvm_pvm"], true, None),
                ["served by kvm_pvm (built into the kernel)", "perf stat -a -e 'kvm:*'"],
            ),
            (kvm(&["kvm"], true, None), ["/dev/kvm is there", "record exits on a host"]),
            (kvm(&["kvm"], false, None), ["without kvm_intel or kvm_amd", "modprobe"]),
            (kvm(&["kvm", "kvm_amd"], false, None), ["show no svm", "firmware"]),
            (kvm(&[], false, Some(Isa::Vmx)), ["no KVM is here", "modprobe"]),
        ] {
            let said = not_recordable(&kvm).unwrap();
            assert!(parts.iter().all(|part| said.contains(part)), "{said}");
            assert!(!said.contains('\n') && !line(&kvm).is_empty(), "{said}");
        }
        assert_eq!(not_recordable(&kvm(&["kvm", "kvm_intel"], true, Some(Isa::Vmx))), None);
        assert_eq!(not_recordable(&kvm(&["kvm"], true, Some(Isa::Arm))), None);
        let pvm = kvm(&["kvm", "kvm_pvm"], true, None);
        assert_eq!(line(&pvm), "kvm_pvm (built into the kernel), whose exits vmtax does not know");
        let denied = Kvm { tracepoints: Err(Unknown::Denied), ..pvm };
        assert!(not_recordable(&denied).unwrap().contains("cannot be read (permission denied)"));
    }
}
