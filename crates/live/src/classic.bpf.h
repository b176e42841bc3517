// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Classic tracepoints, for kernels without BTF of modules (Linux 5.10): the kernel copies the fields of an event into a record,
// and its format file has the offsets (classic.rs). The record has no address of the vCPU, so VMs are distinguished by process.

#define CLASSIC_TRACEPOINT(name) SEC("tp/" #name) int on_##name(void *record)

// In the order of classic.rs, which is the order of attaching.
enum tracepoint {
	T_sched_process_exit,
	T_sched_switch,
	T_kvm_nested_vmrun,
	T_kvm_nested_vmenter,
	T_kvm_nested_vmexit,
	T_kvm_nested_vmexit_inject,
	T_kvm_vcpu_wakeup,
	T_kvm_vm_set_mem_attributes,
	T_kvm_mmu_spte_requested,
	T_kvm_userspace_exit,
	T_kvm_vmgexit_enter,
	T_kvm_vmgexit_msr_protocol_enter,
	T_kvm_apic,
	T_kvm_cr,
	T_kvm_cpuid,
	T_kvm_page_fault,
	T_kvm_xen_hypercall,
	T_kvm_hv_hypercall,
	T_kvm_hypercall,
	T_kvm_fast_mmio,
	T_kvm_mmio,
	T_kvm_pio,
	T_kvm_msr,
	T_kvm_entry,
	T_kvm_exit,
};
_Static_assert(T_kvm_exit + 1 == TRACEPOINTS, "tracepoints");

INLINE u64 number(void *record, u32 tracepoint, u32 at)
{
	u32 offset = config.fields[tracepoint][at].offset, size = config.fields[tracepoint][at].size;
	u64 value = 0;

	if (size && size <= sizeof(value))
		bpf_probe_read_kernel(&value, size, record + offset);
	return value;
}

#define NUMBER(name, at) number(record, T_##name, at)

// The number of the vCPU is used as its address.
INLINE void learn_number(struct thread *thread, u32 tracepoint, u64 vcpu)
{
	if (thread->vcpu_at == vcpu + 1)
		return;
	thread->vcpu_at = vcpu + 1;
	thread->kvm = 1;
	set_vcpu(thread, config.fields[tracepoint][0].size ? vcpu : NO_VCPU);
}

CLASSIC_TRACEPOINT(kvm_exit)
{
	struct thread *thread = vcpu_thread();

	if (!thread)
		return 0;
	learn_number(thread, T_kvm_exit, NUMBER(kvm_exit, 0));
	leave_guest(thread, bpf_ktime_get_ns());
	thread->reason = NUMBER(kvm_exit, 1);
	thread->info1 = NUMBER(kvm_exit, 2);
	thread->info2 = NUMBER(kvm_exit, 3);
	// Kernels that have intr_info have an interrupt's vector there.
	if (ISA == VMX && basic(thread->reason) == 1 && config.fields[T_kvm_exit][4].size)
		thread->info2 = NUMBER(kvm_exit, 4);
	return exit_known(thread);
}

CLASSIC_TRACEPOINT(kvm_entry)
{
	struct thread *thread = vcpu_thread();

	if (!thread)
		return 0;
	learn_number(thread, T_kvm_entry, NUMBER(kvm_entry, 0));
	enter_guest(thread, bpf_ktime_get_ns());
	return 0;
}

CLASSIC_TRACEPOINT(kvm_msr)
{
	return msr(NUMBER(kvm_msr, 0), NUMBER(kvm_msr, 1), NUMBER(kvm_msr, 2));
}

CLASSIC_TRACEPOINT(kvm_pio)
{
	return pio(NUMBER(kvm_pio, 0), NUMBER(kvm_pio, 1), NUMBER(kvm_pio, 2), NUMBER(kvm_pio, 3));
}

CLASSIC_TRACEPOINT(kvm_mmio)
{
	return mmio_of(NUMBER(kvm_mmio, 0), NUMBER(kvm_mmio, 1), NUMBER(kvm_mmio, 2));
}

CLASSIC_TRACEPOINT(kvm_fast_mmio)
{
	return fast_mmio(NUMBER(kvm_fast_mmio, 0));
}

CLASSIC_TRACEPOINT(kvm_hypercall)
{
	return call(HYPERCALL, NUMBER(kvm_hypercall, 0));
}

CLASSIC_TRACEPOINT(kvm_hv_hypercall)
{
	return call(HYPERV_HYPERCALL, (u16)NUMBER(kvm_hv_hypercall, 0));
}

CLASSIC_TRACEPOINT(kvm_xen_hypercall)
{
	return call(XEN_HYPERCALL, NUMBER(kvm_xen_hypercall, 0));
}

CLASSIC_TRACEPOINT(kvm_page_fault)
{
	return page_fault(NUMBER(kvm_page_fault, 0), NUMBER(kvm_page_fault, 1));
}

CLASSIC_TRACEPOINT(kvm_cpuid)
{
	return leaf(NUMBER(kvm_cpuid, 0), NUMBER(kvm_cpuid, 1));
}

CLASSIC_TRACEPOINT(kvm_cr)
{
	return control_register(NUMBER(kvm_cr, 0), NUMBER(kvm_cr, 1), NUMBER(kvm_cr, 2));
}

CLASSIC_TRACEPOINT(kvm_apic)
{
	return apic(NUMBER(kvm_apic, 0), NUMBER(kvm_apic, 1), NUMBER(kvm_apic, 2));
}

CLASSIC_TRACEPOINT(kvm_vmgexit_enter)
{
	return ghcb(NUMBER(kvm_vmgexit_enter, 0), NUMBER(kvm_vmgexit_enter, 1), NUMBER(kvm_vmgexit_enter, 2));
}

CLASSIC_TRACEPOINT(kvm_vmgexit_msr_protocol_enter)
{
	return ghcb_request(NUMBER(kvm_vmgexit_msr_protocol_enter, 0));
}

CLASSIC_TRACEPOINT(kvm_userspace_exit)
{
	return userspace_exit(NUMBER(kvm_userspace_exit, 0), NUMBER(kvm_userspace_exit, 1));
}

CLASSIC_TRACEPOINT(kvm_vm_set_mem_attributes)
{
	return converted(NUMBER(kvm_vm_set_mem_attributes, 0), NUMBER(kvm_vm_set_mem_attributes, 1),
			 NUMBER(kvm_vm_set_mem_attributes, 2));
}

CLASSIC_TRACEPOINT(kvm_mmu_spte_requested)
{
	return mapped(NUMBER(kvm_mmu_spte_requested, 0), NUMBER(kvm_mmu_spte_requested, 1));
}

CLASSIC_TRACEPOINT(kvm_vcpu_wakeup)
{
	return wakeup(NUMBER(kvm_vcpu_wakeup, 0), NUMBER(kvm_vcpu_wakeup, 1));
}

CLASSIC_TRACEPOINT(kvm_nested_vmexit)
{
	struct thread *thread = current_thread();

	(void)record;
	return thread && thread->flags & OPEN ? nested_exit(thread) : 0;
}

CLASSIC_TRACEPOINT(kvm_nested_vmexit_inject)
{
	return nested_inject(NUMBER(kvm_nested_vmexit_inject, 0));
}

CLASSIC_TRACEPOINT(kvm_nested_vmenter)
{
	(void)record;
	return nested_enter();
}

CLASSIC_TRACEPOINT(kvm_nested_vmrun)
{
	(void)record;
	return nested_enter();
}

CLASSIC_TRACEPOINT(sched_switch)
{
	// The low 8 bits are the states in which a task sleeps or exits; without any it was preempted.
	return switched(!(NUMBER(sched_switch, 0) & 0xff), NUMBER(sched_switch, 1));
}

CLASSIC_TRACEPOINT(sched_process_exit)
{
	(void)record;
	return thread_ends();
}
