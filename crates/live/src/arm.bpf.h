// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Tracepoints of KVM on arm64 (Linux arch/arm64/kvm/trace_arm.h and trace_handle_exit.h).

// A system register of arm64, which two tracepoints may tell of.
INLINE int sysreg(u32 write, u32 number)
{
	struct thread *thread = current_thread();
	u32 kind = write ? SYSREG_WRITE : SYSREG_READ;

	if (!thread || !(thread->flags & OPEN) || thread->kind != kind || thread->value != number)
		access(kind, number);
	return tell_now(SYSREG, write, number, 0);
}

INLINE int wait_for(u32 event)
{
	detail(WEIGHT_WAIT, WAIT, event);
	return tell_now(WAIT_FOR, event, 0, 0);
}

// The tracepoints do not say the vCPU. KVM has the scheduler tell it when the thread that runs one leaves a CPU (vcpu_load in
// virt/kvm/kvm_main.c), so the thread has it. It may be another vCPU after each return to user space alone.
INLINE void learn_running_vcpu(struct thread *thread)
{
	u64 node = 0;

	if (thread->vcpu_at)
		return;
	bpf_probe_read_kernel(&node, sizeof(node), (void *)(bpf_get_current_task() + config.task_notifiers));
	if (node)
		learn_vcpu(thread, node - config.vcpu_notifier);
}

// As `reason` of crates/events/src/arm.rs: the class of a trap, or what ended the guest's run otherwise.
INLINE u32 reason_of(u32 ret, u32 class)
{
	if (ret == 2)
		return class & 0x3f;
	return ret == 0xbadca11 ? ret : 0x100 + ret;
}

RAW(kvm_exit)
{
	struct thread *thread = vcpu_thread();

	if (!thread)
		return 0;
	learn_running_vcpu(thread);
	leave_guest(thread, bpf_ktime_get_ns());
	thread->reason = reason_of(args[0], args[1]);
	thread->info1 = thread->info2 = 0;
	return exit_known(thread);
}

RAW(kvm_entry)
{
	struct thread *thread = vcpu_thread();

	(void)args;
	if (!thread)
		return 0;
	learn_running_vcpu(thread);
	enter_guest(thread, bpf_ktime_get_ns());
	return 0;
}

RAW(kvm_guest_fault)
{
	return page_fault(args[3], args[1]);
}

// As `id` of crates/events/src/arm/registers.rs.
INLINE u32 register_of(u32 op0, u32 op1, u32 crn, u32 crm, u32 op2)
{
	return (op0 & 3) << 14 | (op1 & 7) << 11 | (crn & 15) << 7 | (crm & 15) << 3 | (op2 & 7);
}

RAW(kvm_handle_sys_reg)
{
	u64 syndrome = args[0];

	return sysreg(!(syndrome & 1), register_of(syndrome >> 20, syndrome >> 14, syndrome >> 10, syndrome >> 1, syndrome >> 17));
}

RAW(kvm_sys_access)
{
	// Op0, Op1, CRn, CRm and Op2 come first.
	u8 at[5] = {}, write = 0;

	bpf_probe_read_kernel(at, sizeof(at), (void *)args[1]);
	bpf_probe_read_kernel(&write, sizeof(write), (void *)(args[1] + config.sysreg_write));
	return sysreg(write, register_of(at[0], at[1], at[2], at[3], at[4]));
}

RAW(kvm_hvc_arm64)
{
	return call(SMCCC, args[2] << 32 | (u32)args[1]);
}

RAW(kvm_wfx_arm64)
{
	return wait_for((u8)args[1]);
}

// As `is_of_guest` of crates/events/src/arm.rs.
INLINE int is_of_guest(u64 vcpu, u64 mode)
{
	u64 page = 0, hcr = 0;

	if (config.vcpu_vncr)
		bpf_probe_read_kernel(&page, sizeof(page), (void *)(vcpu + config.vcpu_vncr));
	page = page ? page + config.vncr_hcr : vcpu + config.vcpu_hcr;
	bpf_probe_read_kernel(&hcr, sizeof(hcr), (void *)page);
	// AArch32 but for HYP; EL1 and EL0.
	if (mode & 0x10 ? (mode & 0x1f) == 0x1a : (mode & 0xc) >= 8)
		return 0;
	// HCR_EL2.VM without TGE.
	return (hcr & (1 | 1ULL << 27)) == 1;
}

RAW(kvm_nested_eret)
{
	return config.vcpu_hcr && is_of_guest(args[0], args[2]) ? nested_enter() : 0;
}

RAW(kvm_inject_nested_exception)
{
	u64 mode = 0;

	if (!config.vcpu_hcr)
		return 0;
	bpf_probe_read_kernel(&mode, sizeof(mode), (void *)(args[0] + config.vcpu_pstate));
	if (!is_of_guest(args[0], mode))
		return 0;
	// As `injected` of crates/events/src/arm.rs: except_type_sync, except_type_irq, and others.
	if (!args[2])
		return nested_inject(args[1] >> 26 & 0x3f);
	return nested_inject(args[2] == 0x80 ? 0x100 : 0x101);
}
