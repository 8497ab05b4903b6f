/* A disk that takes long over every sync and every rename, for a test run of its own: `make test-slow-disk`.
 *
 * Preloaded into each process of the run. A file in memory (tmpfs) stays as quick as it is. Each call takes between half
 * of and twice SLOW_DISK_MS milliseconds (100 by default), drawn anew, so that two of them end in either order. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

static __thread unsigned seed;

static void wait_a_while(void) {
    const char *said = getenv("SLOW_DISK_MS");
    double usual_ms = said ? atof(said) : 100.0;
    if (!seed) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        seed = (unsigned)now.tv_nsec ^ ((unsigned)getpid() << 16) ^ 1;
    }
    long wait_ns = (long)(usual_ms * 1e6 * (0.5 + 1.5 * rand_r(&seed) / RAND_MAX));
    struct timespec left = {wait_ns / 1000000000, wait_ns % 1000000000};
    while (nanosleep(&left, &left) != 0) {
    }
}

static void wait_for_file(int descriptor) {
    struct statfs about;
    if (fstatfs(descriptor, &about) != 0 || about.f_type != TMPFS_MAGIC) wait_a_while();
}

static void wait_for_name(int folder, const char *name) {
    struct statfs about;
    char copy[4096];
    snprintf(copy, sizeof copy, "%s", name);
    int failed = name[0] == '/' || folder == -100 ? statfs(dirname(copy), &about) : fstatfs(folder, &about);
    if (failed || about.f_type != TMPFS_MAGIC) wait_a_while();
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int fsync(int descriptor) {
    wait_for_file(descriptor);
    return REAL(fsync)(descriptor);
}

int fdatasync(int descriptor) {
    wait_for_file(descriptor);
    return REAL(fdatasync)(descriptor);
}

int rename(const char *from, const char *to) {
    wait_for_name(-100, to);
    return REAL(rename)(from, to);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    wait_for_name(to_folder, to);
    return REAL(renameat)(from_folder, from, to_folder, to);
}
