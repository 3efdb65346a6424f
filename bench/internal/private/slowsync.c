//go:build ignore

// Loaded before the C library (LD_PRELOAD) it makes each fdatasync and fsync take a
// millisecond more, as they do on a disk in the network. The sync itself still happens.

#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void pause_for_a_millisecond(void) {
	struct timespec left = {.tv_sec = 0, .tv_nsec = 1000000};
	while (nanosleep(&left, &left) != 0) {
		// interrupted by a signal: sleep what is left
	}
}

int fdatasync(int fd) {
	pause_for_a_millisecond();
	return (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd) {
	pause_for_a_millisecond();
	return (int)syscall(SYS_fsync, fd);
}
