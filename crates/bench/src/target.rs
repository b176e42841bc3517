//! The VMs of a matrix: hypervisor, processors, memory, kernel.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use vmtax_machine::kernel::Architecture;
use vmtax_machine::ssh::{AddressError, SshAddress};

use crate::link::{Link, Netdev, OutsideLink};

/// Processors, memory and kernel of the VMs of a matrix.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Target {
    /// `kvm`; `tcg` for QEMU's emulator; `amd`, `intel` or `arm` for the KVM of an emulated host.
    pub accel: Accel,
    /// What runs the VMs of an emulated host.
    pub vmm: Vmm,
    /// Processors of the emulated AMD host.
    pub processors: u32,
    pub cpus: u32,
    /// Memory of each VM, MiB.
    pub memory: u32,
    /// The kernel: `distribution`, `debian:VERSION`, `host`, or an image.
    pub kernel: PathBuf,
    /// The folder with an image's modules.
    pub modules: Option<PathBuf>,
    /// The firmware of confidential VMs, if not the one that is found.
    pub firmware: Option<PathBuf>,
    /// MiB of the bounce buffer of `+swiotlb`, if not what Linux gives a confidential VM of this memory.
    pub swiotlb: Option<u32>,
    /// What carries packets between the VM and a client or server outside of it.
    pub network: Option<Netdev>,
    /// The system behind ssh on which remote clients and servers run.
    #[serde(deserialize_with = "ssh")]
    pub remote: Option<SshAddress>,
    /// The address of this computer by which that system reaches it.
    pub address: Option<Ipv4Addr>,
    /// The address of that system, on which its servers listen.
    pub remote_address: Option<Ipv4Addr>,
}

/// What runs the VMs of an emulated host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Vmm {
    /// vmtax's own small VMM.
    #[default]
    Vmtax,
    /// This computer's QEMU, which is copied into the host.
    Qemu,
}

impl Target {
    /// Whether VMs are those of QEMU on an emulated host.
    pub(crate) fn is_inside(&self) -> bool {
        self.vmm == Vmm::Qemu
    }

    /// What contradicts several processors of the emulated host, if there are to be several, for a workload with this accelerator; a sentence.
    pub(crate) fn problem_processors(&self, accel: Accel) -> Option<String> {
        (self.processors > 1 && accel != Accel::Amd).then(|| {
            format!(
                "vm.processors = {}: only the emulated AMD host has several; use accel = \"amd\", not \"{}\"",
                self.processors,
                accel.name()
            )
        })
    }

    /// What contradicts VMs of QEMU on an emulated host, if it is to be one; a sentence.
    pub(crate) fn problem_inside(&self) -> Option<&'static str> {
        let Target { cpus, memory, .. } = Target::default();
        if !self.is_inside() {
            return None;
        }
        if !matches!(self.accel, Accel::Amd | Accel::Intel) {
            return Some(
                "vm.vmm = \"qemu\": is for accel = \"amd\" or \"intel\"; VMs of this computer are QEMU's anyway",
            );
        }
        let other = Target { cpus, memory, vmm: Vmm::Vmtax, ..self.clone() };
        let rest = Target {
            accel: self.accel,
            kernel: self.kernel.clone(),
            modules: self.modules.clone(),
            ..Target::default()
        };
        (other != rest || self.cpus != cpus || self.memory != memory).then_some(
            "vm.vmm = \"qemu\": its VMs have one vCPU (parts +smp, +smp4) and 256 MiB; leave everything out of [vm] but accel, vmm, kernel and modules",
        )
    }

    /// Where this computer and the remote system reach each other; those that it does not have are not used.
    pub(crate) fn outside(&self) -> OutsideLink {
        let or_loopback = |address: Option<Ipv4Addr>| address.unwrap_or(Ipv4Addr::LOCALHOST);
        OutsideLink {
            here: or_loopback(self.address),
            there: or_loopback(self.remote_address),
            port: None,
        }
    }
}

fn ssh<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SshAddress>, D::Error> {
    let text = String::deserialize(from)?;
    let address =
        text.parse().map_err(|e: AddressError| D::Error::custom(format!("{text:?}: {e}")))?;
    Ok(Some(address))
}

/// The hypervisor or emulator of VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// The processor's virtualization.
    Kvm,
    /// QEMU's emulator.
    Tcg,
    /// The KVM of an emulated AMD host (QEMU's emulator).
    Amd,
    /// The KVM of an emulated Intel host (Bochs).
    Intel,
    /// The KVM of an emulated arm64 host (QEMU's emulator).
    Arm,
}

impl Accel {
    /// Its word in a matrix.
    pub fn name(self) -> &'static str {
        match self {
            Accel::Kvm => "kvm",
            Accel::Tcg => "tcg",
            Accel::Amd => "amd",
            Accel::Intel => "intel",
            Accel::Arm => "arm",
        }
    }

    /// Whether VMs run on the KVM of an emulated host.
    pub fn is_emulated_host(self) -> bool {
        matches!(self, Accel::Amd | Accel::Intel | Accel::Arm)
    }

    /// The architecture of its VMs.
    pub(crate) fn architecture(self) -> Architecture {
        match self {
            Accel::Kvm | Accel::Tcg | Accel::Amd | Accel::Intel => Architecture::Amd64,
            Accel::Arm => Architecture::Arm64,
        }
    }

    /// The emulator; `None` on hardware.
    pub fn emulator(self) -> Option<&'static str> {
        match self {
            Accel::Kvm => None,
            Accel::Tcg => Some("QEMU TCG"),
            Accel::Amd => Some("KVM on an emulated AMD host (QEMU TCG)"),
            Accel::Intel => Some("KVM on an emulated Intel host (Bochs)"),
            Accel::Arm => Some("KVM on an emulated arm64 host (QEMU TCG)"),
        }
    }
}

/// The hypervisor of a VM, its number of vCPUs, and its network.
///
/// vCPUs on an emulated host share its processors, so a VM has only as many as its workload needs, or as there are processors: with `idle=poll` an idle
/// one would take half of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Platform {
    pub accel: Accel,
    pub cpus: u32,
    /// The other system that its network card reaches.
    pub link: Option<Link>,
}

impl Default for Target {
    fn default() -> Target {
        Target {
            accel: Accel::Kvm,
            vmm: Vmm::Vmtax,
            processors: 1,
            cpus: 2,
            memory: 1024,
            kernel: "distribution".into(),
            modules: None,
            firmware: None,
            swiotlb: None,
            network: None,
            remote: None,
            address: None,
            remote_address: None,
        }
    }
}
