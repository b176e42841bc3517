//! The KVM of a system.

use vmtax_events::Isa;
use vmtax_events::setting::cpuinfo;
use vmtax_events::setting::files::CPUINFO;
use vmtax_events::setting::{Known, Kvm, KvmModule, Unknown};

use crate::root::{Root, TEXT};

const MODULES: &str = "/sys/module";
/// Where tracefs is; the second is its place until Linux 4.1.
const TRACEPOINTS: [&str; 2] =
    ["/sys/kernel/tracing/events/kvm", "/sys/kernel/debug/tracing/events/kvm"];

pub(crate) fn read(root: &Root) -> Kvm {
    Kvm {
        device: root.names("/dev").is_ok_and(|names| names.iter().any(|name| name == "kvm")),
        modules: modules(root),
        processor: processor(root),
        tracepoints: tracepoints(root),
    }
}

fn modules(root: &Root) -> Known<Vec<KvmModule>> {
    let mut names = root.names(MODULES)?;
    names.retain(|name| Kvm::has_module(name));
    names.sort();
    let module = |name: String| {
        // Only loaded modules have a state.
        let state = root.text(&format!("{MODULES}/{name}/initstate"), 64);
        KvmModule { built_in: state == Err(Unknown::Missing), name }
    };
    Ok(names.into_iter().map(module).collect())
}

fn processor(root: &Root) -> Known<Option<Isa>> {
    let info = root.text(CPUINFO, TEXT)?;
    // arm64 says nothing of virtualization.
    if cpuinfo::is_arm64(&info) {
        return Ok(Some(Isa::Arm));
    }
    let flags = info.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    let (_, flags) = flags.ok_or(Unknown::NotText)?;
    let isa = |flag| match flag {
        "vmx" => Some(Isa::Vmx),
        "svm" => Some(Isa::Svm),
        _ => None,
    };
    Ok(flags.split_ascii_whitespace().find_map(isa))
}

fn tracepoints(root: &Root) -> Known<String> {
    let mut why = Unknown::Missing;
    for place in TRACEPOINTS {
        match root.names(place) {
            Ok(_) => return Ok(place.to_owned()),
            Err(Unknown::Missing) => {}
            Err(other) => why = other,
        }
    }
    Err(why)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use vmtax_events::setting::KvmServer;

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read_from(files: &[(&str, &str)]) -> Kvm {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(path, text)| write(folder.path(), path, text));
        read(&Root::open(folder.path()).unwrap())
    }

    #[test]
    fn a_module_of_another_kind_is_found() {
        let kvm = read_from(&[
            ("dev/kvm", ""),
            ("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu hypervisor\n"),
            ("sys/module/kvm/parameters/halt_poll_ns", "200000\n"),
            ("sys/module/kvm_pvm/parameters/stats", "Y\n"),
            ("sys/module/kvmalloc/parameters/x", "Y\n"),
            ("sys/kernel/debug/tracing/events/kvm/kvm_exit/format", "name: kvm_exit\n"),
        ]);
        let pvm = KvmModule { name: "kvm_pvm".to_owned(), built_in: true };
        assert_eq!(kvm.server(), KvmServer::Other(&pvm));
        assert_eq!(
            (kvm.device, kvm.modules.as_ref().unwrap().len(), &kvm.processor),
            (true, 2, &Ok(None))
        );
        assert_eq!(kvm.tracepoints.as_deref(), Ok(TRACEPOINTS[1]));
    }

    #[test]
    fn a_loaded_module_is_told_from_one_that_is_built_in() {
        let kvm = read_from(&[
            ("proc/cpuinfo", "flags\t: fpu vmx\n"),
            ("sys/module/kvm/parameters/x", "1\n"),
            ("sys/module/kvm_intel/initstate", "live\n"),
        ]);
        let built_in = |name| kvm.module(name).unwrap().built_in;
        assert_eq!((built_in("kvm"), built_in("kvm_intel"), kvm.device), (true, false, false));
        assert!(matches!(kvm.server(), KvmServer::Hardware(Isa::Vmx, _)));
        assert_eq!(kvm.tracepoints, Err(Unknown::Missing));
    }

    #[test]
    fn unreadable_settings_are_unknown() {
        let kvm = read_from(&[]);
        assert_eq!(kvm.server(), KvmServer::Unknown(&Unknown::Missing));
        assert_eq!(kvm.processor, Err(Unknown::Missing));
        let kvm = read_from(&[("sys/module/loop/parameters/x", "1\n")]);
        assert_eq!(kvm.server(), KvmServer::Nothing);
    }
}
