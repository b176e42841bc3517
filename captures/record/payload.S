/*
 * A bare guest with a known number of exits, as a 64 KiB firmware image.
 *
 * It starts at the reset vector, goes to flat 32-bit mode, and executes
 * ROUNDS times: CPUIDS x CPUID, OUTS x OUT (1 byte, port 0xe0), INS x IN
 * (4 bytes, port 0xe4), MMIOW x a 4-byte write and MMIOR x a 4-byte read of
 * mmio (nothing there), RDMSRS x RDMSR 0x1b (APIC base), WRMSRS x WRMSR
 * 0x6e0 (TSC deadline, value 0: disarms), CALLS x hypercall 999 (unknown),
 * SPINS x 1000 empty loops (no exit), HALTS x (arm the APIC timer, HLT,
 * interrupt, EOI: two APIC writes and one HLT), WAITS x (the same with a loop
 * that looks at memory in the place of HLT). Then OUT to port 0xf4 ends it.
 *
 * With CPUS=2 vCPU 0 first starts vCPU 1 (INIT, SIPI: two APIC writes), which
 * executes AP_CPUIDS x CPUID and AP_OUTS x OUT (port 0xe8) each round and
 * halts for good; vCPU 0 waits for it before it ends.
 *
 * Left out: anything a compiler or an operating system would add.
 */
#ifndef ROUNDS
#define ROUNDS 1
#endif
#ifndef CPUS
#define CPUS 1
#endif
#ifndef CPUIDS
#define CPUIDS 0
#endif
#ifndef OUTS
#define OUTS 0
#endif
#ifndef INS
#define INS 0
#endif
#ifndef MMIOW
#define MMIOW 0
#endif
#ifndef MMIOR
#define MMIOR 0
#endif
#ifndef RDMSRS
#define RDMSRS 0
#endif
#ifndef WRMSRS
#define WRMSRS 0
#endif
#ifndef CALLS
#define CALLS 0
#endif
#ifndef SPINS
#define SPINS 0
#endif
#ifndef HALTS
#define HALTS 0
#endif
#ifndef WAITS
#define WAITS 0
#endif
#ifndef AP_CPUIDS
#define AP_CPUIDS 0
#endif
#ifndef AP_OUTS
#define AP_OUTS 0
#endif
#ifndef TIMER
#define TIMER 1000000		/* APIC timer ticks: 1 ns each under KVM */
#endif
#ifndef HYPERCALL
#define HYPERCALL vmmcall
#endif
	.set	mmio, 0xfe800000
	.set	apic, 0xfee00000
	.set	done, 0x6000		/* RAM: number of vCPUs that are done */
	.set	fired, 0x6004		/* RAM: number of timer interrupts */
	.set	ticks, TIMER

	.macro hypercall
	HYPERCALL
	.endm

#include "bare.inc"

	.text
	.code16
	.globl	start
start:	/* SIPI vector 0xf0 */
	flat	ap32
bsp16:
	flat	bsp32

	.code32
ap32:
	segments 0x5000
	mov	$ROUNDS, %ebp
1:	repeat	AP_CPUIDS, "xor %eax, %eax; cpuid"
	repeat	AP_OUTS, "out %al, $0xe8"
	dec	%ebp
	jnz	1b
	lock incl done
2:	cli
	hlt
	jmp	2b

bsp32:
	segments 0x7000
	lidt	idtr
	movl	$0, done
	movl	$0, fired
	.if	HALTS + WAITS
	movl	$0x1ff, apic+0xf0
	movl	$0xb, apic+0x3e0
	movl	$0x40, apic+0x320
	.endif
	.if	CPUS > 1
	movl	$0xc4500, apic+0x300
	mov	$100000, %ecx
3:	dec	%ecx
	jnz	3b
	movl	$0xc46f0, apic+0x300
	.endif
	mov	$ROUNDS, %ebp
round:
	repeat	CPUIDS, "xor %eax, %eax; cpuid"
	repeat	OUTS, "out %al, $0xe0"
	repeat	INS, "in $0xe4, %eax"
	repeat	MMIOW, "movl $0x12345678, mmio"
	repeat	MMIOR, "mov mmio, %eax"
	mov	$0x1b, %ecx
	repeat	RDMSRS, "rdmsr"
	mov	$0x6e0, %ecx
	xor	%eax, %eax
	xor	%edx, %edx
	repeat	WRMSRS, "wrmsr"
	repeat	CALLS, "mov $999, %eax; hypercall"
	repeat	SPINS, "mov $1000, %ecx; 4: dec %ecx; jnz 4b"
	repeat	HALTS, "movl $ticks, apic+0x380; sti; hlt; cli"
	repeat	WAITS, "mov fired, %eax; movl $ticks, apic+0x380; sti; 4: cmp fired, %eax; je 4b; cli"
	dec	%ebp
	jnz	round
	.if	CPUS > 1
5:	pause
	cmpl	$CPUS-1, done
	jne	5b
	.endif
	mov	$0, %al
	out	%al, $0xf4
6:	cli
	hlt
	jmp	6b

timer:	/* EOI */
	incl	fired
	movl	$0, apic+0xb0
	iret

	descriptors
	.balign	8
idt:	.fill	0x40, 8, 0
	.word	timer - start, 8, 0x8e00, 0x000f
idtr:	.word	idtr - idt - 1
	.long	idt

	reset_vector
