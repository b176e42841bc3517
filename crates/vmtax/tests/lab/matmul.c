// A static program whose marked part has the loop of the lab's pattern `matmul`: compilers cannot change it. Without arguments it succeeds; with three it aborts.
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 4096, COLUMNS = 64, ROW = 4000, MIB = 1 << 20 };

#ifdef WHOLE
#define MARK(number)
#else
#define MARK(number) "mov ebx, " number "; .byte 0x64, 0x67, 0x90\n"
#endif

__attribute__((noinline)) void multiply(char *weights, char *vector, float *results) {
    register long left asm("r8"), column asm("r9") = 0;
    register float *into asm("r11") = results;
    char *weight = weights, *part = vector;
    asm volatile(
        ".intel_syntax noprefix\n" MARK("0x111")
        "2: mov r8d, 4096\n"
        "xorps xmm1, xmm1\n"
        "3: movss xmm0, [rsi]\n"
        "mulss xmm0, [rdi]\n"
        "addss xmm1, xmm0\n"
        "add rsi, 4\n"
        "add rdi, 4000\n"
        "dec r8\n"
        "jnz 3b\n"
        "movss [r11 + r9 * 4], xmm1\n"
        "inc r9\n"
        "lea rdi, [rax + r9 * 4]\n"
        "mov rsi, rdx\n"
        "cmp r9, 64\n"
        "jne 2b\n" MARK("0x222")
        ".att_syntax\n"
        : "+D"(weight), "+S"(part), "=r"(left), "+r"(column)
        : "a"(weights), "d"(vector), "r"(into)
        : "rbx", "xmm0", "xmm1", "memory", "cc");
}

int main(int argc, char **argv) {
    char *all = aligned_alloc(2 * MIB, 28 * MIB);
    float *vector = (float *)(all + 20 * MIB), *results = (float *)(all + 24 * MIB);
    for (int row = 0; row < ROWS; row++) vector[row] = 2;
    for (int column = 0; column < COLUMNS; column++) results[column] = 0;
    // Later than the rest, so that no TLB has an entry of that.
    for (float *weight = (float *)all; (char *)weight < all + ROWS * ROW; weight++) *weight = 1;
    multiply(all, (char *)vector, results);
    printf("the product is %g for %s\n", results[COLUMNS - 1], argc > 1 ? argv[1] : "nobody");
    if (argc > 3) abort();
    return argc > 2 ? atoi(argv[2]) : results[COLUMNS - 1] != 2 * ROWS;
}
