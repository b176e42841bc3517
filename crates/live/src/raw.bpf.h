// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Raw tracepoints. Their arguments are those of the kernel's call: nothing is copied or formatted.

// One of two arguments. Both are read first: the kernel's verifier rejects a computed index.
INLINE u64 one_of(u32 second, u64 a, u64 b)
{
	__asm__ volatile("" : "+r"(a), "+r"(b));
	return second ? b : a;
}

// Sets the vCPU that the thread runs.
APART int learn_vcpu(struct thread *thread, u64 vcpu)
{
	u32 number = 0;
	u8 closed = 0;

	if (!thread)
		return 0;
	thread->vcpu_at = vcpu;
	// KVM sets it before the vCPU runs: tdx_vcpu_create, and sev_launch_update_vmsa or snp_launch_finish. Before `kvm`, by which
	// user space tells that the vCPU is known.
	if (config.vcpu_protected &&
	    !bpf_probe_read_kernel(&closed, sizeof(closed), (void *)(vcpu + config.vcpu_protected)))
		thread->protection = closed ? STATE_PROTECTED : STATE_OPEN;
	bpf_probe_read_kernel(&number, sizeof(number), (void *)(vcpu + config.vcpu_id));
	bpf_probe_read_kernel(&thread->kvm, sizeof(thread->kvm), (void *)(vcpu + config.vcpu_kvm));
	set_vcpu(thread, number);
	if (config.svm_vmcb01)
		bpf_probe_read_kernel(&thread->vmcb01, sizeof(u64), (void *)(vcpu + config.svm_vmcb01));
	return 0;
}

// Its reason cannot be read: no exit is better than a wrong one.
APART int lose_exit(struct thread *thread)
{
	add_one(&totals.lost);
	if (thread) {
		thread->flags = 0;
		thread->state &= ~SEEN;
	}
	return 0;
}

// Layout of the VMCB: AMD APM volume 2, appendix B. EXITCODE is at 0x70.
INLINE void read_vmcb(struct thread *thread, u64 vmcb)
{
	if (bpf_probe_read_kernel(&thread->reason, 24, (void *)(vmcb + 0x70)))
		lose_exit(thread);
}

// The VMCB that the processor last ran: L1's or L2's.
INLINE void read_present_vmcb(struct thread *thread, u64 vcpu)
{
	u64 vmcb = 0;

	bpf_probe_read_kernel(&vmcb, sizeof(vmcb), (void *)(vcpu + config.svm_vmcb));
	read_vmcb(thread, vmcb);
}

RAW(kvm_exit)
{
	struct thread *thread = vcpu_thread();
	u64 vcpu = one_of(config.exit_vcpu, args[0], args[1]);

	if (!thread)
		return 0;
	if (thread->vcpu_at != vcpu)
		learn_vcpu(thread, vcpu);
	leave_guest(thread, bpf_ktime_get_ns());
	if (ISA == VMX) {
		if (config.raw)
			thread->info1 = thread->info2 = 0;
		if (bpf_probe_read_kernel(&thread->reason, 4, (void *)(vcpu + config.vmx_exit_reason)))
			lose_exit(thread);
	} else if (config.svm_vmcb01 && !config.raw) {
		// If it was L2's, kvm_nested_vmexit follows.
		read_vmcb(thread, thread->vmcb01);
	} else {
		read_present_vmcb(thread, vcpu);
	}
	return exit_known(thread);
}

RAW(kvm_entry)
{
	struct thread *thread = vcpu_thread();
	u64 vcpu = args[0];

	if (!thread)
		return 0;
	if (thread->vcpu_at != vcpu)
		learn_vcpu(thread, vcpu);
	enter_guest(thread, bpf_ktime_get_ns());
	return 0;
}

RAW(kvm_msr)
{
	return msr(args[0], args[1], args[2]);
}

RAW(kvm_pio)
{
	return pio(args[0], args[1], args[2], args[3]);
}

RAW(kvm_mmio)
{
	return mmio_of(args[0], args[1], args[2]);
}

RAW(kvm_fast_mmio)
{
	return fast_mmio(args[0]);
}

RAW(kvm_hypercall)
{
	return call(HYPERCALL, args[0]);
}

RAW(kvm_hv_hypercall)
{
	return call(HYPERV_HYPERCALL, (u16)args[0]);
}

RAW(kvm_xen_hypercall)
{
	return call(XEN_HYPERCALL, one_of(config.xen_number, args[0], args[1]));
}

RAW(kvm_page_fault)
{
	u64 first = args[0], second = args[1];

	if (!config.fault_address)
		return page_fault(first, second);
	return page_fault(second, args[2]);
}

RAW(kvm_cpuid)
{
	return leaf(args[0], args[1]);
}

RAW(kvm_cr)
{
	return control_register(args[0], args[1], args[2]);
}

RAW(kvm_apic)
{
	return apic(args[0], args[1], args[2]);
}

RAW(kvm_vmgexit_enter)
{
	// The code and its two words of information.
	u64 request[3] = {};

	bpf_probe_read_kernel(request, sizeof(request), (void *)(args[1] + config.ghcb_exit_code));
	return ghcb(request[0], request[1], request[2]);
}

RAW(kvm_vmgexit_msr_protocol_enter)
{
	return ghcb_request(args[1]);
}

RAW(kvm_userspace_exit)
{
	return userspace_exit(args[0], args[1]);
}

RAW(kvm_vm_set_mem_attributes)
{
	return converted(args[0], args[1], args[2]);
}

RAW(kvm_mmu_spte_requested)
{
	u64 gfn = 0;
	u8 level = 0;

	if (!config.fault_level)
		return 0;
	bpf_probe_read_kernel(&level, sizeof(level), (void *)(args[0] + config.fault_level));
	if (config.raw)
		bpf_probe_read_kernel(&gfn, sizeof(gfn), (void *)(args[0] + config.fault_gfn));
	return mapped(gfn, level);
}

RAW(kvm_vcpu_wakeup)
{
	return wakeup(args[0], (u8)args[1]);
}

RAW(kvm_nested_vmexit)
{
	struct thread *thread = current_thread();

	(void)args;
	if (!thread || !(thread->flags & OPEN))
		return 0;
	if (ISA == SVM && config.svm_vmcb01 && !config.raw)
		read_present_vmcb(thread, thread->vcpu_at);
	return nested_exit(thread);
}

RAW(kvm_nested_vmexit_inject)
{
	return nested_inject(args[0]);
}

RAW(kvm_nested_vmenter)
{
	(void)args;
	return nested_enter();
}

RAW(kvm_nested_vmrun)
{
	(void)args;
	return nested_enter();
}

RAW(sched_switch)
{
	u32 state = 0, next = 0;

	if (config.switch_has_state)
		state = args[3];
	else
		bpf_probe_read_kernel(&state, sizeof(state), (void *)(args[1] + config.task_state));
	bpf_probe_read_kernel(&next, sizeof(next), (void *)(args[2] + config.task_pid));
	// A task in no state of TASK_REPORT neither sleeps nor exits: it was preempted.
	return switched(args[0] || !(state & 0x7f), next);
}

RAW(sched_process_exit)
{
	(void)args;
	return thread_ends();
}
