//! Which KVM serves a system's VMs.

use super::{Known, Unknown};
use crate::Isa;

/// A module of the kernel, loaded or built in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvmModule {
    /// Its name. Hostile text.
    pub name: String,
    /// It is part of the kernel's image.
    pub built_in: bool,
}

/// KVM on a system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kvm {
    /// `/dev/kvm` is there.
    pub device: bool,
    /// The module `kvm`, and those with its prefix that drive a kind of virtualization: `kvm_intel`, `kvm_amd`, others.
    pub modules: Known<Vec<KvmModule>>,
    /// The virtualization that the processor's flags (or fields of its own) show: none, or unknown.
    pub processor: Known<Option<Isa>>,
    /// The folder with KVM's tracepoints.
    pub tracepoints: Known<String>,
}

/// What serves, as far as recording exits goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitServer<'a> {
    /// `kvm_intel` or `kvm_amd`: exits by VMX or SVM. On arm64 `kvm`.
    Hardware(Isa, &'a KvmModule),
    /// Another module, whose exits are not known.
    Other(&'a KvmModule),
    /// `kvm_intel` or `kvm_amd` is built in, and the processor has no such virtualization.
    Unsupported(&'a KvmModule),
    /// `kvm` alone, or a `/dev/kvm` of which no module is seen.
    Unnamed,
    Nothing,
    /// The modules could not be listed.
    Unknown(&'a Unknown),
}

/// The core of KVM, which needs a vendor module.
const CORE: &str = "kvm";
const INTEL: &str = "kvm_intel";
const AMD: &str = "kvm_amd";

impl Default for Kvm {
    /// A system that was not examined.
    fn default() -> Kvm {
        Kvm {
            device: false,
            modules: Err(Unknown::NotRead),
            processor: Err(Unknown::NotRead),
            tracepoints: Err(Unknown::NotRead),
        }
    }
}

impl Kvm {
    /// Whether a module of this name belongs to KVM.
    pub fn has_module(name: &str) -> bool {
        name == CORE || name.starts_with("kvm_")
    }

    /// The module of this name.
    pub fn module(&self, name: &str) -> Option<&KvmModule> {
        self.modules.as_ref().ok()?.iter().find(|module| module.name == name)
    }

    /// What serves VMs here.
    pub fn server(&self) -> ExitServer<'_> {
        let modules = match &self.modules {
            Ok(modules) => modules,
            Err(why) => return ExitServer::Unknown(why),
        };
        let mut vendors =
            [(Isa::Vmx, INTEL), (Isa::Svm, AMD)].map(|(isa, name)| (isa, self.module(name)));
        // Where both are built in the processor decides, which may also have neither.
        if self.processor == Ok(Some(Isa::Svm)) {
            vendors.reverse();
        }
        // KVM has no other module on arm64.
        if self.processor == Ok(Some(Isa::Arm))
            && let Some(module) = self.module(CORE)
        {
            return ExitServer::Hardware(Isa::Arm, module);
        }
        let other = modules.iter().find(|module| ![CORE, INTEL, AMD].contains(&&*module.name));
        for (isa, module) in vendors {
            if let Some(module) = module.filter(|module| self.supports(isa, module)) {
                return ExitServer::Hardware(isa, module);
            }
        }
        match (other, vendors.into_iter().find_map(|(_, module)| module)) {
            (Some(module), _) => ExitServer::Other(module),
            (None, Some(module)) => ExitServer::Unsupported(module),
            (None, None) if self.device || self.module(CORE).is_some() => ExitServer::Unnamed,
            (None, None) => ExitServer::Nothing,
        }
    }

    /// A loaded module has found the hardware that it needs; a built-in one is always present.
    fn supports(&self, isa: Isa, module: &KvmModule) -> bool {
        !module.built_in || self.processor.as_ref().map_or(true, |has| *has == Some(isa))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The KVM that these modules form; `+` marks built-in ones.
    fn server(modules: &[&str], processor: Known<Option<Isa>>, device: bool) -> String {
        let module = |name: &&str| KvmModule {
            name: name.trim_start_matches('+').to_owned(),
            built_in: name.starts_with('+'),
        };
        let kvm = Kvm {
            device,
            modules: Ok(modules.iter().map(module).collect()),
            processor,
            tracepoints: Err(Unknown::NotRead),
        };
        match kvm.server() {
            ExitServer::Hardware(isa, module) => format!("{} {}", isa.name(), module.name),
            ExitServer::Other(module) => format!("other {}", module.name),
            ExitServer::Unsupported(module) => format!("unsupported {}", module.name),
            ExitServer::Unnamed => "unnamed".to_owned(),
            ExitServer::Nothing => "nothing".to_owned(),
            ExitServer::Unknown(why) => why.to_string(),
        }
    }

    #[test]
    fn modules_and_processor_show_which_kvm_is_used() {
        let (vmx, svm, none, unknown) =
            (Ok(Some(Isa::Vmx)), Ok(Some(Isa::Svm)), Ok(None), Err(Unknown::Missing));
        for (modules, processor, device, expected) in [
            (&["kvm", "kvm_intel"][..], &vmx, true, "vmx kvm_intel"),
            (&["kvm", "kvm_amd"], &svm, true, "svm kvm_amd"),
            // In a container there is no device, and the host's modules are seen.
            (&["kvm", "kvm_amd"], &unknown, false, "svm kvm_amd"),
            (&["+kvm", "+kvm_amd", "+kvm_intel"], &vmx, true, "vmx kvm_intel"),
            (&["+kvm", "+kvm_amd", "+kvm_intel"], &svm, true, "svm kvm_amd"),
            (&["+kvm", "+kvm_amd", "+kvm_intel"], &none, false, "unsupported kvm_intel"),
            (&["+kvm", "+kvm_pvm"], &none, true, "other kvm_pvm"),
            (&["+kvm", "+kvm_intel", "kvm_pvm"], &none, true, "other kvm_pvm"),
            (&["+kvm"], &none, true, "unnamed"),
            (&["kvm"], &svm, false, "unnamed"),
            (&[], &none, true, "unnamed"),
            (&[], &svm, false, "nothing"),
            (&["+kvm"], &Ok(Some(Isa::Arm)), true, "arm64 kvm"),
            (&[], &Ok(Some(Isa::Arm)), true, "unnamed"),
        ] {
            assert_eq!(server(modules, processor.clone(), device), expected, "{modules:?}");
        }
    }
}
