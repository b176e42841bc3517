//! Threads of VMMs and idle functions of kernels, by the names that they have.

/// Functions in which a processor is idle: Linux kernel/sched/idle.c, drivers/cpuidle, drivers/idle/intel_idle.c, drivers/acpi/processor_idle.c,
/// arch/x86/kernel/process.c, arch/x86/xen/irq.c (SCHEDOP_block), arch/arm64/kernel/idle.c.
const IDLE_FUNCTIONS: [&str; 15] = [
    "native_safe_halt",
    "pv_native_safe_halt",
    "acpi_safe_halt",
    "acpi_idle_do_entry",
    "acpi_idle_enter",
    "default_idle",
    "default_idle_call",
    "mwait_idle",
    "mwait_idle_with_hints",
    "intel_idle",
    "intel_idle_irq",
    "cpu_idle",
    "cpu_do_idle",
    "arch_cpu_idle",
    "xen_hypercall_sched_op",
];

/// Whether a processor is idle in this function.
pub fn is_idle_function(name: &str) -> bool {
    IDLE_FUNCTIONS.contains(&name)
}

/// A thread that runs a vCPU, by the name that QEMU (`CPU 0/KVM`), libvirt, Cloud Hypervisor, Firecracker or crosvm give it.
pub fn is_vcpu_thread(name: &str) -> bool {
    name.strip_prefix("CPU ").is_some_and(|rest| rest.contains("/KVM"))
        || ["vcpu", "fc_vcpu", "crosvm_vcpu"].iter().any(|start| name.starts_with(start))
}
