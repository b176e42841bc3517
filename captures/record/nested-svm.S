/*
 * A bare SVM hypervisor (L1) with a bare guest of its own (L2), as a 64 KiB firmware image.
 *
 * L1 intercepts CPUID, HLT, VMMCALL and port 0xe8 of L2; L2 executes ROUNDS times: CPUIDS x CPUID, CALLS x VMMCALL and
 * OUT8S x OUT to port 0xe8 (these go to L1), OUT0S x OUT to port 0xe0 and RDMSRS x RDMSR 0x1b (L1 does not want these: the
 * host, L0, answers them), and at the end one HLT (to L1). So L1 executes ROUNDS * (CPUIDS + CALLS + OUT8S) + 1 VMRUNs,
 * each with one VMLOAD before and one VMSAVE after when VMLOADS is 1, and for L1S x CPUID of its own after each VMRUN.
 *
 * Left out: nested paging (L2 sees L1's memory), interrupts.
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
#ifndef OUT8S
#define OUT8S 0
#endif
#ifndef OUT0S
#define OUT0S 0
#endif
#ifndef RDMSRS
#define RDMSRS 0
#endif
#ifndef VMLOADS
#define VMLOADS 1
#endif
#ifndef L1S
#define L1S 0
#endif
#include "bare.inc"
	.set	pages, 0x8000
	.set	host_save, 0x10000
	.set	vmcb, 0x11000
	.set	io_map, 0x12000		/* 12 KiB; all RAM starts as zeroes */
	.set	msr_map, 0x16000	/* 8 KiB */
	.set	code_cpuid, 0x72
	.set	code_hlt, 0x78
	.set	code_io, 0x7b
	.set	code_vmmcall, 0x81

	.text
	.code16
	.globl	start
start:
bsp16:
	flat	bsp32

	.code32
	.macro segment at, selector, attributes
	movl	$\selector + (\attributes << 16), vmcb + 0x400 + \at
	movl	$0xffffffff, vmcb + 0x404 + \at
	.endm

bsp32:
	segments 0x7000
	mov	$0x87, %eax		/* KVM wants a hypervisor to page: all addresses map to themselves, in 4 MiB pages */
	mov	$pages, %edi
1:	mov	%eax, (%edi)
	add	$4, %edi
	add	$0x400000, %eax
	jnc	1b
	mov	$pages, %eax
	mov	%eax, %cr3
	mov	$0x10, %eax		/* PSE */
	mov	%eax, %cr4
	mov	%cr0, %eax
	or	$0x80000000, %eax
	mov	%eax, %cr0
	mov	$0xc0000080, %ecx	/* EFER.SVME */
	rdmsr
	or	$0x1000, %eax
	wrmsr
	mov	$0xc0010117, %ecx	/* VM_HSAVE_PA */
	mov	$host_save, %eax
	xor	%edx, %edx
	wrmsr
	movl	$1 << 18 | 1 << 24 | 1 << 27 | 1 << 28, vmcb + 0x0c	/* CPUID, HLT, ports by map, MSRs by map */
	movl	$3, vmcb + 0x10						/* VMRUN, VMMCALL */
	movl	$io_map, vmcb + 0x40
	movl	$msr_map, vmcb + 0x48
	movl	$1, vmcb + 0x58						/* ASID */
	movb	$1, io_map + 0xe8 / 8					/* port 0xe8 */
	segment	0x00, 16, 0xc93
	segment	0x10, 8, 0xc9b
	segment	0x20, 16, 0xc93
	segment	0x30, 16, 0xc93
	segment	0x40, 16, 0xc93
	segment	0x50, 16, 0xc93
	movl	$0x1000, vmcb + 0x4d0					/* EFER */
	movl	$0x11, vmcb + 0x558					/* CR0 */
	movl	$0x400, vmcb + 0x560					/* DR7 */
	movl	$0xffff0ff0, vmcb + 0x568				/* DR6 */
	movl	$2, vmcb + 0x570					/* RFLAGS */
	movl	$l2, vmcb + 0x578					/* RIP */
	movl	$0x6000, vmcb + 0x5d8					/* RSP */

	/* L2 keeps its counters in ESI and EBP, which VMRUN does not touch: L1 uses EAX, EBX, ECX, EDX and EDI only. */
again:	mov	$vmcb, %eax
	.if	VMLOADS
	vmload
	.endif
	vmrun
	.if	VMLOADS
	vmsave
	.endif
	.if	L1S
	mov	$L1S, %edi
1:	xor	%eax, %eax
	cpuid
	dec	%edi
	jnz	1b
	.endif
	mov	vmcb + 0x70, %eax
	mov	$2, %edx
	cmp	$code_cpuid, %eax
	je	skip
	cmp	$code_io, %eax
	je	skip
	mov	$3, %edx
	cmp	$code_vmmcall, %eax
	je	skip
	out	%al, $0xf4		/* HLT is the end; any other code is an error: the status tells */
2:	cli
	hlt
	jmp	2b
skip:	add	%edx, vmcb + 0x578
	jmp	again

l2:	mov	$ROUNDS, %ebp
round:
	repeat	CPUIDS, "xor %eax, %eax; cpuid"
	repeat	CALLS, "vmmcall"
	repeat	OUT8S, "out %al, $0xe8"
	repeat	OUT0S, "out %al, $0xe0"
	mov	$0x1b, %ecx
	repeat	RDMSRS, "rdmsr"
	dec	%ebp
	jnz	round
	hlt
	jmp	l2

	descriptors
	reset_vector
