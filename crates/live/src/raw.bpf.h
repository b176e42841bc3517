// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Raw tracepoints. Their arguments are those of the kernel's call: nothing is copied or formatted.

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

RAW(kvm_mmio)
{
	return mmio_of(args[0], args[1], args[2]);
}

RAW(kvm_userspace_exit)
{
	return userspace_exit(args[0], args[1]);
}

RAW(kvm_vm_set_mem_attributes)
{
	return converted(args[0], args[1], args[2]);
}

RAW(kvm_vcpu_wakeup)
{
	return wakeup(args[0], (u8)args[1]);
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
