// A multiboot kernel that has counter 0 count its instructions, and prints their number as a letter: A is none.
.code32
.globl _start
.align 4
.long 0x1BADB002, 0, -(0x1BADB002)
_start:
    // Instructions, in both modes; global control is all on after a reset. Off: four instructions later.
    mov $0x186, %ecx; mov $0x5300c0, %eax; xor %edx, %edx; wrmsr
    mov $0x38f, %ecx; mov $0, %eax; xor %edx, %edx; wrmsr
    // On, and off nine instructions later.
    mov $0x38f, %ecx; mov $1, %eax; xor %edx, %edx; wrmsr
    nop; nop; nop; nop; nop
    mov $0x38f, %ecx; mov $0, %eax; xor %edx, %edx; wrmsr
    nop; nop; nop
    mov $0xc1, %ecx; rdmsr
    add $'A', %eax
    mov $0x3f8, %dx; out %al, %dx
    mov $10, %al; out %al, %dx
    mov $0, %al; mov $0xf4, %dx; out %al, %dx
1:  hlt; jmp 1b
