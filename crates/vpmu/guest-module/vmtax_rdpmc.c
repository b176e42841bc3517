// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/*
 * Lets a Linux guest's perf work with a virtual PMU in user space, such as vmtax-vpmu's.
 *
 * Linux reads its counters by RDPMC. KVM never forwards that instruction to the VMM, so that it faults (#GP), or reads
 * zero where the host is an AMD machine with a kernel that answers it itself although its PMU is off (6.1 does). Counters
 * can be read by RDMSR too, and KVM does forward that. This module does so in place of the kernel's RDPMC:
 *
 *   RDPMC faults          a die notifier reads the MSR and continues behind the instruction
 *   RDPMC does not fault  a kprobe on the instruction calls code that reads the MSR
 *
 * User space is left alone: there RDPMC faults, or reads zero, as without this module.
 */

#include <linux/kallsyms.h>
#include <linux/kdebug.h>
#include <linux/kprobes.h>
#include <linux/linkage.h>
#include <linux/module.h>
#include <linux/objtool.h>
#include <linux/ptrace.h>
#include <asm/cpufeature.h>
#include <asm/msr.h>
#include <asm/processor.h>
#include <asm/text-patching.h>

#define RDPMC_BYTES 2
/* ECX: the fixed counters are those with bit 30. */
#define FIXED (1u << 30)
/* More counters than any processor has. */
#define MOST 16

#define INTEL_COUNTER 0xc1
#define INTEL_FIXED 0x309
#define AMD_COUNTER 0xc0010004
#define AMD_CORE_COUNTER 0xc0010201

static unsigned long faults;
module_param(faults, ulong, 0444);
MODULE_PARM_DESC(faults, "RDPMC instructions that faulted and were answered");

/* The MSR of a counter by RDPMC's index; 0 if it is no counter. */
static u32 counter_msr(u32 index)
{
	u32 number = index & ~FIXED;

	if (number >= MOST)
		return 0;
	if (boot_cpu_data.x86_vendor == X86_VENDOR_INTEL)
		return number + (index & FIXED ? INTEL_FIXED : INTEL_COUNTER);
	if (index & FIXED)
		return 0;
	if (boot_cpu_has(X86_FEATURE_PERFCTR_CORE))
		return AMD_CORE_COUNTER + 2 * number;
	return AMD_COUNTER + number;
}

static bool is_rdpmc(const u8 *code)
{
	return code[0] == 0x0f && code[1] == 0x33;
}

static int on_die(struct notifier_block *block, unsigned long kind, void *data)
{
	struct pt_regs *regs = ((struct die_args *)data)->regs;
	u32 msr;
	u64 value;

	if (kind != DIE_GPF || user_mode(regs) || !is_rdpmc((const u8 *)regs->ip))
		return NOTIFY_DONE;
	msr = counter_msr(regs->cx);
	if (!msr || rdmsrl_safe(msr, &value))
		return NOTIFY_DONE;
	regs->ax = (u32)value;
	regs->dx = value >> 32;
	regs->ip += RDPMC_BYTES;
	faults++;
	return NOTIFY_STOP;
}

static struct notifier_block die_block = {
	.notifier_call = on_die,
	.priority = INT_MAX,
};

/*
 * What a probe has the processor execute in place of RDPMC: RDMSR of the MSR that the probe left on the stack above the
 * address to return to. Not in the probe's handler, since the exit of RDMSR is where an NMI is delivered, whose own
 * RDPMC the probe would miss.
 */
asm(".pushsection .text\n"
    ".type vmtax_read_msr, @function\n"
    "vmtax_read_msr:\n"
    "	push %rcx\n"
    "	mov 8(%rsp), %ecx\n"
    "	rdmsr\n"
    "	pop %rcx\n"
    "	lea 8(%rsp), %rsp\n"
    "	" ASM_RET
    ".size vmtax_read_msr, . - vmtax_read_msr\n"
    ".popsection\n");
extern void vmtax_read_msr(void);
STACK_FRAME_NON_STANDARD(vmtax_read_msr);

static int on_rdpmc(struct kprobe *probe, struct pt_regs *regs)
{
	u32 msr = counter_msr(regs->cx);

	if (!msr)
		return 0;
	int3_emulate_push(regs, (unsigned long)probe->addr + RDPMC_BYTES);
	int3_emulate_push(regs, msr);
	int3_emulate_jmp(regs, (unsigned long)vmtax_read_msr);
	return 1;
}

/* A probe with a handler after the instruction is never turned into a jump, behind which the address could not change. */
static void after_rdpmc(struct kprobe *probe, struct pt_regs *regs, unsigned long flags)
{
}

/* Where the kernel has RDPMC for perf: out of line for paravirtualization, or in the function that updates an event. */
static const char *const functions[] = { "native_read_pmc", "x86_perf_event_update" };
/* So far into a function. */
#define REACH 256

static struct kprobe probes[ARRAY_SIZE(functions)];
static bool probed[ARRAY_SIZE(functions)];

static void put_probe(unsigned int i)
{
	unsigned int offset;
	struct kprobe find = { .symbol_name = functions[i] };
	const u8 *code;

	/* The address of a function that is not exported is what registering a probe tells. */
	if (register_kprobe(&find))
		return;
	code = (const u8 *)find.addr;
	unregister_kprobe(&find);
	for (offset = 0; offset < REACH && !probed[i]; offset++) {
		if (!is_rdpmc(code + offset))
			continue;
		/* Bytes that are no instruction are refused. */
		memset(&probes[i], 0, sizeof(probes[i]));
		probes[i].symbol_name = functions[i];
		probes[i].offset = offset;
		probes[i].pre_handler = on_rdpmc;
		probes[i].post_handler = after_rdpmc;
		probed[i] = !register_kprobe(&probes[i]);
	}
}

/* Whether RDPMC of the first counter faults. */
static bool does_fault(void)
{
	u32 low, high;
	bool fault = true;

	asm volatile("1: rdpmc\n"
		     "   movb $0, %[fault]\n"
		     "2:\n"
		     _ASM_EXTABLE(1b, 2b)
		     : "=&a"(low), "=&d"(high), [fault] "+m"(fault)
		     : "c"(0));
	return fault;
}

static int __init start(void)
{
	unsigned int i, count = 0;
	bool fault = does_fault();
	int error = register_die_notifier(&die_block);

	if (error)
		return error;
	if (!fault) {
		for (i = 0; i < ARRAY_SIZE(functions); i++) {
			put_probe(i);
			count += probed[i];
		}
		if (!count) {
			unregister_die_notifier(&die_block);
			pr_err("vmtax_rdpmc: RDPMC does not fault here and this kernel's RDPMC was not found\n");
			return -ENOENT;
		}
	}
	pr_info("vmtax_rdpmc: RDPMC %s; counters are read by RDMSR\n",
		fault ? "faults" : "does not fault and is probed");
	return 0;
}

static void __exit stop(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(functions); i++)
		if (probed[i])
			unregister_kprobe(&probes[i]);
	unregister_die_notifier(&die_block);
}

module_init(start);
module_exit(stop);
MODULE_DESCRIPTION("Reads performance counters by RDMSR in place of RDPMC");
MODULE_LICENSE("Dual MIT/GPL");
