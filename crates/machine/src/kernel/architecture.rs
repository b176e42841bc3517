//! Architectures of kernels, by Debian's names.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// x86-64.
    Amd64,
    /// arm64.
    Arm64,
}

impl Architecture {
    pub(super) fn name(self) -> &'static str {
        match self {
            Architecture::Amd64 => "amd64",
            Architecture::Arm64 => "arm64",
        }
    }

    /// The folder of the cache for Debian's kernels. Its name changes with the modules that are kept.
    pub(super) fn folder(self) -> &'static str {
        match self {
            Architecture::Amd64 => "debian",
            Architecture::Arm64 => "debian-arm64-2",
        }
    }

    /// The modules that are kept of Debian's kernels, with their dependencies: all of them are 400 MB a kernel. KVM is built into those of
    /// arm64, and the mailbox's driver is not.
    pub fn kept(self) -> &'static [&'static str] {
        match self {
            Architecture::Amd64 => &["kvm_amd", "kvm_intel"],
            Architecture::Arm64 => &["virtio_mmio", "virtio_blk"],
        }
    }

    /// The modules that are kept beside them where a kernel has them: those of a host with QEMU in it, of its VMs, and of
    /// a guest's network.
    pub(super) fn kept_too(self) -> &'static [&'static str] {
        match self {
            Architecture::Amd64 => &[
                "tun",
                "vhost_net",
                "bridge",
                "zram",
                "virtio_pci",
                "virtio_net",
                "virtio_blk",
                "cpuidle_haltpoll",
            ],
            Architecture::Arm64 => &["tun", "virtio_net"],
        }
    }

    /// How names of its images' packages end.
    pub fn flavour(self) -> String {
        format!("-{}", self.name())
    }
}
