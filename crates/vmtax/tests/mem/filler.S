# Firmware of a VM that fills its memory with noise made of a seed, and then goes on writing to it. It is all that runs there.
# The test writes seed, number of ranges and the ranges (start, bytes) at `table`.
.equ BASE, 0xf0000
.equ TABLES, 0x1000                     # page tables: PML4, PDPT, 16 page directories

.code16
start16:
    cli
    lgdtl %cs:(gdtr - start16)
    mov %cr0, %eax
    or $1, %eax
    mov %eax, %cr0
    ljmpl $0x08, $(BASE + start32 - start16)

.code32
start32:
    mov $0x10, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    # 16 GiB, at their own addresses, by pages of 2 MiB.
    mov $TABLES, %edi
    xor %eax, %eax
    mov $(18 * 1024), %ecx
    rep stosl
    movl $(TABLES + 0x1003), TABLES
    mov $(TABLES + 0x1000), %edi
    mov $(TABLES + 0x2003), %eax
    mov $16, %ecx
1:  mov %eax, (%edi)
    add $0x1000, %eax
    add $8, %edi
    loop 1b
    mov $(TABLES + 0x2000), %edi
    mov $0x83, %eax
    xor %edx, %edx
    mov $(16 * 512), %ecx
2:  mov %eax, (%edi)
    mov %edx, 4(%edi)
    add $0x200000, %eax
    adc $0, %edx
    add $8, %edi
    loop 2b
    mov %cr4, %eax
    or $0x20, %eax
    mov %eax, %cr4
    mov $TABLES, %eax
    mov %eax, %cr3
    mov $0xc0000080, %ecx
    rdmsr
    or $0x100, %eax
    wrmsr
    mov %cr0, %eax
    or $0x80000000, %eax
    mov %eax, %cr0
    ljmp $0x18, $(BASE + start64 - start16)

.code64
# The next number of a xorshift in rax.
.macro next
    mov %rax, %rdx
    shl $13, %rdx
    xor %rdx, %rax
    mov %rax, %rdx
    shr $7, %rdx
    xor %rdx, %rax
    mov %rax, %rdx
    shl $17, %rdx
    xor %rdx, %rax
.endm

start64:
    mov $(BASE + table - start16), %rsi
    mov (%rsi), %r8                     # seed
    mov 8(%rsi), %r9                    # number of ranges
    lea 16(%rsi), %rsi
    mov %rsi, %r10
    mov %r9, %r11
range:
    mov (%r10), %rdi
    mov 8(%r10), %rbx
    add %rdi, %rbx
page:
    mov %rdi, %rax
    imul %r8, %rax
    xor %r8, %rax
    or $1, %rax
    next
    next
    mov %rax, %rcx
    shr $40, %rcx
    and $3, %rcx
    jz skip                             # a quarter is never touched
    cmp $1, %rcx
    mov $512, %ecx
    je fill
noise:
    next
    mov %rax, (%rdi)
    add $8, %rdi
    dec %ecx
    jnz noise
    jmp done
fill:
    rep stosq                           # a quarter is of one word
done:
    cmp %rbx, %rdi
    jb page
    jmp last
skip:
    add $4096, %rdi
    cmp %rbx, %rdi
    jb page
last:
    add $16, %r10
    dec %r11
    jnz range
    mov $'F', %al
    out %al, $0xe9

    # From now on a word here and there.
    mov %r8, %rax
    or $1, %rax
again:
    next
    mov %rax, %rbp
    xor %edx, %edx
    div %r9
    mov %rdx, %rcx                      # a range
    shl $4, %rcx
    mov 8(%rsi, %rcx), %rbx
    mov %rbp, %rax
    shr $8, %rax
    xor %edx, %edx
    div %rbx
    and $-8, %rdx
    add (%rsi, %rcx), %rdx
    mov %rbp, (%rdx)
    mov %rbp, %rax
    mov $200, %ecx
3:  pause
    dec %ecx
    jnz 3b
    jmp again

.balign 8
gdt:
    .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff, 0x00af9a000000ffff
gdtr:
    .word 31
    .long BASE + gdt - start16

.org 0x8000
table:
.org 0xfff0
.code16
    ljmp $0xf000, $(start16 - start16)
.org 0x10000
