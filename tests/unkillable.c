/* Holds a process at its exit: SIGKILL brings it to this stop and no further, like a call that never leaves a driver. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    pid_t held = atoi(arguments[count - 1]);
    if (ptrace(PTRACE_SEIZE, held, 0, PTRACE_O_TRACEEXIT) != 0) {
        perror("ptrace");
        return 1;
    }
    puts("holding");
    fflush(stdout);
    for (;;)
        pause();
}
