/*
 * A bare VMX hypervisor (L1) with a bare guest of its own (L2), as a 64 KiB firmware image.
 *
 * L2 executes ROUNDS times: CPUIDS x CPUID and CALLS x VMCALL (these always go to L1), OUTS x OUT to port 0xe0 (L1 does not
 * intercept ports: the host, L0, answers), and at the end one HLT (to L1). So L1 executes 1 VMLAUNCH and ROUNDS * (CPUIDS + CALLS)
 * VMRESUMEs, and after each exit but the last 2 VMREADs (reason, instruction pointer) and 1 VMWRITE (instruction pointer).
 * The end is OUT to port 0xf4 of the exit reason (12 is HLT), or 0xee when an instruction of L1 failed.
 *
 * Left out: EPT (L2 shares L1's page tables), interrupts.
 */
#ifndef ROUNDS
#define ROUNDS 1
#endif
#ifndef CPUIDS
#define CPUIDS 0
#endif
#ifndef CALLS
#define CALLS 0
#endif
#ifndef OUTS
#define OUTS 0
#endif
#include "bare.inc"
	.set	pages, 0x8000
	.set	vmxon_region, 0x10000
	.set	vmcs_region, 0x11000
	.set	tss, 0x12000
	.set	table, 0x13000		/* a copy of the descriptors in RAM: loading the task register marks its TSS busy */
	.set	pointer, 0x14000
	.set	resumed, 0x14010

	.text
	.code16
	.globl	start
start:
bsp16:
	flat	bsp32

	.code32
	.macro field number, value:vararg
	mov	$\number, %edx
	mov	\value, %eax
	vmwrite	%eax, %edx
	jbe	failed
	.endm

	/* A control field: the bits wanted, then what the capability MSR makes fixed (low half: must be 1, high half: may be 1). */
	.macro control number, msr, bits
	mov	$\msr, %ecx
	rdmsr
	or	$\bits, %eax
	and	%edx, %eax
	mov	$\number, %edx
	vmwrite	%eax, %edx
	jbe	failed
	.endm

bsp32:
	segments 0x7000
	mov	$0x87, %eax		/* VMX wants paging: all addresses map to themselves, in 4 MiB pages */
	mov	$pages, %edi
1:	mov	%eax, (%edi)
	add	$4, %edi
	add	$0x400000, %eax
	jnc	1b
	mov	$pages, %eax
	mov	%eax, %cr3
	mov	$0x2010, %eax		/* VMXE, PSE */
	mov	%eax, %cr4
	mov	%cr0, %eax
	or	$0x80000020, %eax	/* PG, NE */
	mov	%eax, %cr0

	mov	$gdt, %esi		/* descriptors to RAM, with a TSS at selector 24 */
	mov	$table, %edi
	mov	$6, %ecx
	cld
	rep movsl
	movl	$(((tss & 0xffff) << 16) | 0x67), table + 24
	movl	$(0x8900 | (tss >> 16)), table + 28
	movw	$31, pointer
	movl	$table, pointer + 2
	lgdt	pointer
	mov	$24, %eax
	ltr	%ax

	mov	$0x3a, %ecx		/* IA32_FEATURE_CONTROL: lock, VMX outside SMX */
	rdmsr
	test	$1, %al
	jnz	2f
	or	$5, %eax
	wrmsr
2:	mov	$0x480, %ecx		/* IA32_VMX_BASIC: the revision */
	rdmsr
	and	$0x7fffffff, %eax
	mov	%eax, vmxon_region
	mov	%eax, vmcs_region
	movl	$vmxon_region, pointer
	movl	$0, pointer + 4
	vmxon	pointer
	jbe	failed
	movl	$vmcs_region, pointer
	vmclear	pointer
	jbe	failed
	vmptrld	pointer
	jbe	failed

	control	0x4000, 0x481, 0		/* pin */
	control	0x4002, 0x482, 1 << 7		/* processor: HLT exits */
	control	0x400c, 0x483, 0		/* exit */
	control	0x4012, 0x484, 0		/* entry */
	field	0x4004, $0			/* exceptions */
	field	0x400e, $0
	field	0x4010, $0
	field	0x4014, $0
	field	0x4016, $0
	field	0x400a, $0			/* CR3 targets */
	field	0x6000, $0			/* CR0 and CR4 masks */
	field	0x6002, $0
	field	0x2800, $0xffffffff		/* no linked VMCS */
	field	0x2801, $0xffffffff

	.irp	number, 0x0c00, 0x0c04, 0x0c06, 0x0c08, 0x0c0a		/* L1's selectors */
	field	\number, $16
	.endr
	field	0x0c02, $8
	field	0x0c0c, $24
	field	0x6c00, %cr0
	field	0x6c02, %cr3
	field	0x6c04, %cr4
	field	0x6c06, $0
	field	0x6c08, $0
	field	0x6c0a, $tss
	field	0x6c0c, $table
	field	0x6c0e, $0
	field	0x4c00, $0
	field	0x6c10, $0
	field	0x6c12, $0
	field	0x6c14, $0x7000
	field	0x6c16, $exited

	.irp	number, 0x0800, 0x0804, 0x0806, 0x0808, 0x080a		/* L2's segments: selector, limit, rights, base */
	field	\number, $16
	field	\number+0x4800-0x0800, $0xffffffff			/* 0x0800 + 2n has its limit at 0x4800 + 2n */
	field	\number+0x4814-0x0800, $0xc093
	field	\number+0x6806-0x0800, $0
	.endr
	field	0x0802, $8
	field	0x4802, $0xffffffff
	field	0x4816, $0xc09b
	field	0x6808, $0
	field	0x080c, $0			/* LDTR: unusable */
	field	0x480c, $0
	field	0x4820, $0x10000
	field	0x6812, $0
	field	0x080e, $24			/* TR */
	field	0x480e, $0x67
	field	0x4822, $0x8b
	field	0x6814, $tss
	field	0x4810, $31			/* GDTR, IDTR */
	field	0x6816, $table
	field	0x4812, $0
	field	0x6818, $0
	field	0x6800, %cr0
	field	0x6802, %cr3
	field	0x6804, %cr4
	field	0x681a, $0x400			/* DR7 */
	field	0x2802, $0			/* DEBUGCTL */
	field	0x2803, $0
	field	0x482a, $0			/* SYSENTER */
	field	0x6824, $0
	field	0x6826, $0
	field	0x4824, $0			/* interruptibility, activity */
	field	0x4826, $0
	field	0x6822, $0			/* pending debug exceptions */
	field	0x681c, $0x6000			/* RSP, RIP, RFLAGS */
	field	0x681e, $l2
	field	0x6820, $2
	vmlaunch
failed:	mov	$0x4400, %edx		/* VM-instruction error, to port 0xea: to be seen in the trace */
	vmread	%edx, %eax
	out	%al, $0xea
	mov	$0xee, %al
end:	out	%al, $0xf4
3:	cli
	hlt
	jmp	3b

	/* L2 keeps its counters in ESI and EBP: L1 uses EAX, EBX, ECX and EDX only. */
exited:	mov	$0x4402, %edx
	vmread	%edx, %eax
	mov	$2, %ecx
	cmp	$10, %eax		/* CPUID */
	je	skip
	mov	$3, %ecx
	cmp	$18, %eax		/* VMCALL */
	jne	end
skip:	mov	$0x681e, %edx
	vmread	%edx, %eax
	add	%ecx, %eax
	vmwrite	%eax, %edx
	vmresume
	jmp	failed

l2:	mov	$ROUNDS, %ebp
round:
	repeat	CPUIDS, "xor %eax, %eax; cpuid"
	repeat	CALLS, "vmcall"
	repeat	OUTS, "out %al, $0xe0"
	dec	%ebp
	jnz	round
	hlt

	descriptors
	reset_vector
