// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Tracepoints of KVM on x86, and probes in its code.

// Leaves whose answer depends on ECX, as in Detail::cpuid of crates/events/src/detail.rs.
#define LEAVES                                                                                                          \
	(1ULL << 0x4 | 1ULL << 0x7 | 1ULL << 0xb | 1ULL << 0xd | 1ULL << 0xf | 1ULL << 0x10 | 1ULL << 0x12 |           \
	 1ULL << 0x14 | 1ULL << 0x17 | 1ULL << 0x18 | 1ULL << 0x1d | 1ULL << 0x1e | 1ULL << 0x1f | 1ULL << 0x24)

INLINE int cpuid(u32 leaf, u32 index)
{
	int has;

	if (leaf < 64)
		has = LEAVES >> leaf & 1;
	else
		has = leaf == 0x8000001d || leaf == 0x80000020 || leaf == 0x80000026;
	return access(CPUID, (u64)leaf << 32 | (has ? index : 0));
}

// A page is mapped: for a page fault during an exit, otherwise on request of user space.
INLINE int mapped(u64 gfn, u32 level)
{
	struct thread *thread = current_thread();
	u64 id = bpf_get_current_pid_tgid();

	// A single-threaded process may be a kernel thread, which maps pages that were swapped out.
	if (!thread && (u32)id != id >> 32)
		thread = thread_at(new_thread());
	if (thread && (thread->flags & (OPEN | USER)) != OPEN && level - 1 < 3)
		count_access(thread, PRE_FAULT, 4096ULL << 9 * (level - 1), 0, 0);
	return tell_now(MAP_REQUEST, gfn, level, 0);
}

// Handlers of tracepoints, each with its single event.
INLINE int msr(u32 write, u32 index, u64 data)
{
	access(write ? MSR_WRITE : MSR_READ, index);
	return tell_now(MSR, write, index, data);
}

INLINE int pio(u32 write, u16 port, u32 size, u32 count)
{
	access(write ? PORT_OUT : PORT_IN, port);
	return tell_now(PIO, write, port | (u64)size << 32, count);
}

INLINE int fast_mmio(u64 address)
{
	access(MMIO_WRITE, address);
	return tell_now(FAST_MMIO, address, 0, 0);
}

INLINE int leaf(u32 function, u32 index)
{
	cpuid(function, index);
	return tell_now(LEAF, function, index, 0);
}

INLINE int control_register(u32 write, u8 number, u64 value)
{
	detail(WEIGHT_ACCESS, write ? CR_WRITE : CR_READ, number);
	return tell_now(CR, write, number, value);
}

INLINE int apic(u32 write, u32 at, u64 value)
{
	detail(WEIGHT_APIC, write ? APIC_WRITE : APIC_READ, at);
	return tell_now(APIC, write, at, value);
}

INLINE int ghcb(u64 code, u64 first, u64 second)
{
	// ghcb::request of crates/events: MMIO_READ, MMIO_WRITE, IOIO.
	if (code == 0x80000001 || code == 0x80000002)
		detail(WEIGHT_ACCESS, code == 0x80000001 ? MMIO_READ : MMIO_WRITE, first);
	else if (code == 0x7b)
		detail(WEIGHT_ACCESS, first & 1 ? PORT_IN : PORT_OUT, first >> 16 & 0xffff);
	else
		detail(WEIGHT_GHCB, GHCB, code);
	return tell_now(GHCB_ENTER, code, first, second);
}

INLINE int ghcb_request(u64 value)
{
	detail(WEIGHT_GHCB, GHCB_MSR, value & 0xfff);
	return tell_now(GHCB_REQUEST, value, 0, 0);
}

INLINE int nested_exit(struct thread *thread)
{
	of_l2(thread);
	return tell_now(NESTED_EXIT, 0, 0, 0);
}

// One of two arguments. Both are read first: the kernel's verifier rejects a computed index.
INLINE u64 one_of(u32 second, u64 a, u64 b)
{
	__asm__ volatile("" : "+r"(a), "+r"(b));
	return second ? b : a;
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

#if ISA == VMX
// KVM has loaded the field's encoding from the guest's register into a register of the host.
INLINE int vmcs_field(void *registers, u32 at, u32 write)
{
	u64 field = 0;

	bpf_probe_read_kernel(&field, sizeof(field), registers + at);
	// No encoding has more than 32 bits; a guest that names such a field gets an error.
	if (field >> 32)
		return 0;
	detail(WEIGHT_ACCESS, VMCS_FIELD, field);
	return tell_now(VMCS, write, field, 0);
}

// Probes in the handler of VMREAD, then those in the handler of VMWRITE.
#define PROBE(n, write)                                                                                                \
	SEC("kprobe/vmcs") int on_vmcs_##n(void *registers)                                                            \
	{                                                                                                              \
		return vmcs_field(registers, config.vmcs_register[n], write);                                          \
	}
PROBE(0, 0)
PROBE(1, 0)
PROBE(2, 1)
PROBE(3, 1)
#endif
