/* A guest that writes to its memory and checks it, as firmware for a PC: no kernel, no BIOS.
 *
 *   as --32 guest.S -o guest.o; ld -m elf_i386 -Ttext 0xf0000 --oformat binary -e reset guest.o -o guest.bin
 *   qemu-system-x86_64 -m 256 -bios guest.bin -serial stdio
 *
 * STATIC pages are written once and every fourth is left zero. ACTIVE pages get other content in each pass, and every fourth is zero,
 * another one in each pass. A pass checks what the pass before wrote, writes, checks a sixteenth of the static pages, and prints one
 * character: '.' if all was right since the start, 'X' if not. 'R' comes before the first pass.
 *
 * Word k of a page: ((seed + k) * MIX) | 1, or 0; the seed of a static page is its number * 1024, of an active page that plus
 * generation * STEP.
 */
	.set STATIC, 0x400000
	.set STATIC_PAGES, 32768
	.set ACTIVE, 0xa000000
	.set ACTIVE_PAGES, 1024
	.set MIX, 0x9e3779b1
	.set STEP, 0x01000193
	.set GENERATION, 0x9000
	.set ERRORS, 0x9004
	.set SERIAL, 0x3f8

	.text
	.code16
base:
enter:
	cli
	lgdtl	%cs:(gdt_pointer - base)
	movl	%cr0, %eax
	orl	$1, %eax
	movl	%eax, %cr0
	ljmpl	$8, $protected

	.code32
protected:
	movw	$16, %ax
	movw	%ax, %ds
	movw	%ax, %es
	movw	%ax, %ss
	movl	$0x8000, %esp

	movl	$0, ERRORS
	movl	$0, GENERATION
	xorl	%esi, %esi
static_fill:
	call	static_page
	testl	%ebp, %ebp
	jz	1f			/* stays as it was never written */
	call	fill
1:	incl	%esi
	cmpl	$STATIC_PAGES, %esi
	jb	static_fill

	xorl	%ebx, %ebx
	xorl	%esi, %esi
active_fill:
	call	active_page
	call	fill
	incl	%esi
	cmpl	$ACTIVE_PAGES, %esi
	jb	active_fill
	movb	$'R', %al
	call	put

pass:
	xorl	%esi, %esi
active:
	movl	GENERATION, %ebx
	call	active_page
	call	check
	incl	%ebx
	call	active_page
	call	fill
	incl	%esi
	cmpl	$ACTIVE_PAGES, %esi
	jb	active
	incl	GENERATION

	movl	GENERATION, %esi
	andl	$15, %esi
static:
	call	static_page
	call	check
	addl	$16, %esi
	cmpl	$STATIC_PAGES, %esi
	jb	static

	movb	$'.', %al
	cmpl	$0, ERRORS
	je	1f
	movb	$'X', %al
1:	call	put
	jmp	pass

/* Page esi: its address in edi, its seed in edx, -1 or (zero page) 0 in ebp. */
static_page:
	movl	%esi, %edi
	shll	$12, %edi
	addl	$STATIC, %edi
	movl	%esi, %edx
	shll	$10, %edx
	movl	%esi, %ebp
	jmp	kind
/* The same, in generation ebx. */
active_page:
	movl	%esi, %edi
	shll	$12, %edi
	addl	$ACTIVE, %edi
	movl	%esi, %eax
	shll	$10, %eax
	imull	$STEP, %ebx, %edx
	addl	%eax, %edx
	leal	(%esi, %ebx), %ebp
kind:
	andl	$3, %ebp
	negl	%ebp
	sbbl	%ebp, %ebp
	ret

fill:
	xorl	%ecx, %ecx
1:	leal	(%edx, %ecx), %eax
	imull	$MIX, %eax, %eax
	orl	$1, %eax
	andl	%ebp, %eax
	movl	%eax, (%edi, %ecx, 4)
	incl	%ecx
	cmpl	$1024, %ecx
	jb	1b
	ret

check:
	xorl	%ecx, %ecx
1:	leal	(%edx, %ecx), %eax
	imull	$MIX, %eax, %eax
	orl	$1, %eax
	andl	%ebp, %eax
	cmpl	%eax, (%edi, %ecx, 4)
	je	2f
	incl	ERRORS
2:	incl	%ecx
	cmpl	$1024, %ecx
	jb	1b
	ret

/* Prints al. */
put:
	movb	%al, %ah
	movw	$SERIAL + 5, %dx
1:	inb	%dx, %al
	testb	$0x20, %al
	jz	1b
	movb	%ah, %al
	movw	$SERIAL, %dx
	outb	%al, %dx
	ret

	.balign	8
gdt:	.quad	0
	.quad	0x00cf9b000000ffff
	.quad	0x00cf93000000ffff
gdt_pointer:
	.word	. - gdt - 1
	.long	gdt

	.code16
	.org	0xfff0
	.globl	reset
reset:
	ljmp	$0xf000, $(enter - base)
	.org	0x10000
