//! What the programs have to know of this kernel.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use vmtax_events::Isa;

use crate::Error;
use crate::btf::Types;
use crate::layout::{Config, StartConfig};

/// Where kernels describe their types.
const TYPES: &str = "sys/kernel/btf";

/// The part of the configuration that the kernel decides.
pub(crate) fn config(root: &Path, isa: Isa) -> Result<Config, Error> {
    described(root, modules(isa), |types| fill(isa, types))
}

/// The same for programs that time starts.
pub(crate) fn start_config(root: &Path) -> Result<StartConfig, Error> {
    described(root, &["kvm"], |types| {
        Ok(StartConfig {
            file_private: offset(types, "file", &["private_data"])?,
            vcpu_kvm: offset(types, "kvm_vcpu", &["kvm"])?,
            task_pid: offset(types, "task_struct", &["pid"])?,
            ..StartConfig::default()
        })
    })
}

/// What `fill` makes of the types of the kernel and these modules.
fn described<T>(
    root: &Path,
    modules: &[&str],
    fill: impl Fn(&[Types<'_>]) -> Result<T, String>,
) -> Result<T, Error> {
    let folder = root.join(TYPES);
    let path = folder.join("vmlinux");
    let bytes = read(&path)?;
    let kernel = Types::parse(&bytes, None).map_err(problem(&path))?;
    // A module that is built in has no file: its types are among the kernel's.
    let modules: Vec<PathBuf> =
        modules.iter().map(|name| folder.join(name)).filter(|path| path.exists()).collect();
    let mut contents = Vec::new();
    for path in &modules {
        contents.push(read(path)?);
    }
    let mut described = Vec::new();
    for (path, bytes) in modules.iter().zip(&contents) {
        described.push(Types::parse(bytes, Some(&kernel)).map_err(problem(path))?);
    }
    // A kernel whose modules do not describe themselves says nothing of KVM, unless KVM is built in.
    if modules.is_empty() && kernel.arguments("kvm_exit").is_none() {
        let source = io::ErrorKind::NotFound.into();
        return Err(Error::NoTypes { path: folder.join("kvm"), source });
    }
    described.push(kernel.on_its_own());
    fill(&described).map_err(problem(modules.last().unwrap_or(&path)))
}

/// KVM's modules. That of arm64 is none.
fn modules(isa: Isa) -> &'static [&'static str] {
    match isa {
        Isa::Svm => &["kvm", "kvm_amd"],
        Isa::Arm => &[],
        Isa::Vmx | Isa::Unknown => &["kvm", "kvm_intel"],
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::NoTypes { path: path.to_owned(), source })
}

fn problem(path: &Path) -> impl Fn(String) -> Error {
    move |problem| Error::Types { path: path.to_owned(), problem }
}

/// The offset of a member, by the first of its paths that is there.
fn offset(described: &[Types<'_>], name: &str, paths: &[&str]) -> Result<u32, String> {
    let found =
        described.iter().find_map(|types| paths.iter().find_map(|path| types.offset(name, path)));
    found.ok_or_else(|| format!("describes no member {} of {name}", paths[0]))
}

fn fill(isa: Isa, described: &[Types<'_>]) -> Result<Config, String> {
    let offset = |name: &str, paths: &[&str]| offset(described, name, paths);
    let arguments = |name: &str| described.iter().find_map(|types| types.arguments(name));
    let mut config = Config {
        vcpu_id: offset("kvm_vcpu", &["vcpu_id"])?,
        vcpu_kvm: offset("kvm_vcpu", &["kvm"])?,
        task_pid: offset("task_struct", &["pid"])?,
        // Its name until Linux 5.13.
        task_state: offset("task_struct", &["__state", "state"])?,
        // Until Linux 5.16 the reason came first. On arm64 there is no vCPU.
        exit_vcpu: match (isa, arguments("kvm_exit")) {
            (Isa::Arm, Some(3)) | (Isa::Svm | Isa::Vmx | Isa::Unknown, Some(2)) => 0,
            (Isa::Svm | Isa::Vmx | Isa::Unknown, Some(3)) => 1,
            (_, other) => {
                return Err(format!(
                    "describes a tracepoint kvm_exit with {other:?} arguments, which this vmtax does not know"
                ));
            }
        },
        // Until Linux 5.18 there was no vCPU before it.
        fault_address: u32::from(arguments("kvm_page_fault") == Some(3)),
        // Since Linux 6.2 the privilege level comes first.
        xen_number: u32::from(arguments("kvm_xen_hypercall") == Some(8)),
        // Since Linux 5.18.
        switch_has_state: u32::from(arguments("sched_switch") == Some(4)),
        // Since Linux 5.11. Without it nothing is known of the registers.
        vcpu_protected: offset("kvm_vcpu", &["arch.guest_state_protected"]).unwrap_or_default(),
        // Without it pages that are pre-faulted are not counted.
        fault_level: offset("kvm_page_fault", &["goal_level"]).unwrap_or_default(),
        fault_gfn: offset("kvm_page_fault", &["gfn"]).unwrap_or_default(),
        ..Config::default()
    };
    match isa {
        Isa::Svm => {
            config.svm_vmcb = offset("vcpu_svm", &["vmcb"])?;
            config.svm_vmcb01 = offset("vcpu_svm", &["vmcb01.ptr"]).unwrap_or_default();
            // Kernels without SEV-ES have no such page, and no tracepoint that would name it.
            config.ghcb_exit_code = offset("ghcb", &["save.sw_exit_code"]).unwrap_or_default();
        }
        Isa::Arm => {
            config.task_notifiers = offset("task_struct", &["preempt_notifiers.first"])?;
            config.vcpu_notifier = offset("kvm_vcpu", &["preempt_notifier.link"])?;
            config.sysreg_write = offset("sys_reg_params", &["is_write"])?;
            let has_hypervisors = arguments("kvm_nested_eret").is_some();
            if has_hypervisors && hypervisors(&mut config, described).is_none() {
                return Err(
                    "describes no place of HCR_EL2, which tells exits of L2 from those of L1"
                        .to_owned(),
                );
            }
        }
        Isa::Vmx | Isa::Unknown => {
            // Since Linux 6.16 what VMX and TDX share is a struct of its own.
            config.vmx_exit_reason = offset("vcpu_vmx", &["exit_reason", "vt.exit_reason"])?;
            config.vmx_qualification =
                offset("vcpu_vmx", &["exit_qualification", "vt.exit_qualification"])?;
            // Without it interrupts have no vectors.
            config.vmx_interruption =
                offset("vcpu_vmx", &["exit_intr_info", "vt.exit_intr_info"]).unwrap_or_default();
        }
    }
    Ok(config)
}

/// Where a vCPU of arm64 has what tells a hypervisor from its guest. Registers from `__VNCR_START__` on are in the page of VNCR_EL2, where a vCPU has one
/// (Linux `arch/arm64/include/asm/kvm_host.h`, `___ctxt_sys_reg`); HCR_EL2 is one of them in 6.12, and not in 7.3.
fn hypervisors(config: &mut Config, described: &[Types<'_>]) -> Option<()> {
    let offset = |path| offset(described, "kvm_vcpu", &[path]).ok();
    let number = |name| described.iter().find_map(|types| types.enumerator(name));
    let hcr = number("HCR_EL2")?;
    config.vcpu_pstate = offset("arch.ctxt.regs.pstate")?;
    if let Some(place) = number("__VNCR_START__").and_then(|first| hcr.checked_sub(first)) {
        config.vcpu_vncr = offset("arch.ctxt.vncr_array")?;
        config.vncr_hcr = 8 * place;
    }
    config.vcpu_hcr = offset("arch.ctxt.sys_regs")? + 8 * hcr;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_btf_is_reported() {
        let root = tempfile::tempdir().unwrap();
        let error = config(root.path(), Isa::Svm).unwrap_err().to_string();
        assert!(
            error.contains("sys/kernel/btf/vmlinux: the kernel does not describe its types"),
            "{error}"
        );
        fs::create_dir_all(root.path().join(TYPES)).unwrap();
        fs::write(root.path().join(TYPES).join("vmlinux"), "no types").unwrap();
        let error = config(root.path(), Isa::Svm).unwrap_err().to_string();
        assert!(error.contains("is no type information"), "{error}");
    }
}
