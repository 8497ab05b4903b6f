/* Fails calls of the C library on files of the journal: for LD_PRELOAD, see test_calls.py.
 *
 * faults_arm(at, error, mode): the at-th call from now on fails with this errno (mode 0), it and all after it (mode 1), or
 * it writes half of what it was given (mode 2). faults_arm(0, 0, 0) ends that. faults_count() is how many calls there were,
 * faults_failed() the name of the first that was made to fail.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static int at, error, mode, count;
static const char *failed = "";

void faults_arm(int new_at, int new_error, int new_mode) {
    at = new_at, error = new_error, mode = new_mode, count = 0, failed = "";
}
int faults_count(void) { return count; }
const char *faults_failed(void) { return failed; }

static int is_ours(int descriptor) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, "journal.db") != NULL;
}

/* 0: go on; 1: fail; 2: do half. */
static int verdict(const char *name) {
    if (!at) return 0;
    count++;
    if (count < at || (mode != 1 && count > at)) return 0;
    if (!*failed) failed = name;
    if (mode == 2) return 2;
    errno = error;
    return 1;
}

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define ON_DESCRIPTOR(result, name, parameters, arguments, ...) \
    result name parameters { \
        REAL(result, name, __VA_ARGS__); \
        if (at && is_ours(d) && verdict(#name) == 1) return (result)-1; \
        return real arguments; \
    }

ON_DESCRIPTOR(int, fsync, (int d), (d), int)
ON_DESCRIPTOR(int, fdatasync, (int d), (d), int)
ON_DESCRIPTOR(int, ftruncate, (int d, off_t n), (d, n), int, off_t)
ON_DESCRIPTOR(int, ftruncate64, (int d, off64_t n), (d, n), int, off64_t)
ON_DESCRIPTOR(int, fallocate, (int d, int m, off_t o, off_t n), (d, m, o, n), int, int, off_t, off_t)
ON_DESCRIPTOR(int, fallocate64, (int d, int m, off64_t o, off64_t n), (d, m, o, n), int, int, off64_t, off64_t)
ON_DESCRIPTOR(int, fchmod, (int d, mode_t m), (d, m), int, mode_t)
ON_DESCRIPTOR(int, fchown, (int d, uid_t u, gid_t g), (d, u, g), int, uid_t, gid_t)
ON_DESCRIPTOR(ssize_t, read, (int d, void *b, size_t n), (d, b, n), int, void *, size_t)
ON_DESCRIPTOR(ssize_t, pread, (int d, void *b, size_t n, off_t o), (d, b, n, o), int, void *, size_t, off_t)
ON_DESCRIPTOR(ssize_t, pread64, (int d, void *b, size_t n, off64_t o), (d, b, n, o), int, void *, size_t, off64_t)

#define WRITES(name, parameters, arguments, half, ...) \
    ssize_t name parameters { \
        REAL(ssize_t, name, __VA_ARGS__); \
        if (at && is_ours(d)) switch (verdict(#name)) { \
            case 1: return -1; \
            case 2: return real half; \
        } \
        return real arguments; \
    }

WRITES(write, (int d, const void *b, size_t n), (d, b, n), (d, b, (n + 1) / 2), int, const void *, size_t)
WRITES(pwrite, (int d, const void *b, size_t n, off_t o), (d, b, n, o), (d, b, (n + 1) / 2, o), int, const void *, size_t,
       off_t)
WRITES(pwrite64, (int d, const void *b, size_t n, off64_t o), (d, b, n, o), (d, b, (n + 1) / 2, o), int, const void *,
       size_t, off64_t)

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, name, const char *, int, mode_t); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode_bits = va_arg(rest, mode_t); \
        va_end(rest); \
        if (at && strstr(path, "journal.db") && verdict(#name) == 1) return -1; \
        return real(path, flags, mode_bits); \
    }

OPENS(open)
OPENS(open64)

int unlink(const char *path) {
    REAL(int, unlink, const char *);
    if (at && strstr(path, "journal.db") && verdict("unlink") == 1) return -1;
    return real(path);
}

void *mmap(void *where, size_t n, int protection, int flags, int d, off_t o) {
    REAL(void *, mmap, void *, size_t, int, int, int, off_t);
    if (at && d >= 0 && is_ours(d) && verdict("mmap") == 1) return MAP_FAILED;
    return real(where, n, protection, flags, d, o);
}

void *mmap64(void *where, size_t n, int protection, int flags, int d, off64_t o) {
    REAL(void *, mmap64, void *, size_t, int, int, int, off64_t);
    if (at && d >= 0 && is_ours(d) && verdict("mmap64") == 1) return MAP_FAILED;
    return real(where, n, protection, flags, d, o);
}
