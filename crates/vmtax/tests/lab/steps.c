// Counts the instructions of a program by single-stepping it, by the ranges of addresses that they lie in.
// Usage: steps BEGIN-END... -- PROGRAM ARGUMENTS, addresses in hexadecimal. Prints a count for each range.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    unsigned long begin[16], end[16], count[16] = {0};
    int ranges = 0, i = 1, status;
    for (; i < argc && strcmp(argv[i], "--") && ranges < 16; i++, ranges++)
        if (sscanf(argv[i], "%lx-%lx", &begin[ranges], &end[ranges]) != 2) return 2;
    if (i + 1 >= argc) return 2;
    pid_t child = fork();
    if (child == 0) {
        close(1);
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execv(argv[i + 1], argv + i + 1);
        _exit(127);
    }
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
        struct user_regs_struct registers;
        if (ptrace(PTRACE_GETREGS, child, 0, &registers)) return 1;
        for (int range = 0; range < ranges; range++)
            count[range] += registers.rip >= begin[range] && registers.rip < end[range];
        if (ptrace(PTRACE_SINGLESTEP, child, 0, 0)) return 1;
    }
    for (int range = 0; range < ranges; range++) printf("%lu\n", count[range]);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}
