//! Threads of VMMs, by the names that they have.

/// A thread that runs a vCPU, by the name that QEMU (`CPU 0/KVM`), libvirt, Cloud Hypervisor, Firecracker or crosvm give it.
pub fn is_vcpu_thread(name: &str) -> bool {
    name.strip_prefix("CPU ").is_some_and(|rest| rest.contains("/KVM"))
        || ["vcpu", "fc_vcpu", "crosvm_vcpu"].iter().any(|start| name.starts_with(start))
}
