/* libcuda.so.1 as far as gpu_check's part "park" calls it, with the types of NVIDIA's cuda.h (CUDA 12.8).

   It holds the caller to the documentation: cuInit first, a process that is there, reserved fields zero, a limit for the
   lock, and the order RUNNING -> LOCKED -> CHECKPOINTED -> LOCKED -> RUNNING. PARK_FAILS=2: no memory at the restore. */
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef enum { CUDA_SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, ILLEGAL_STATE = 401 } CUresult;
typedef enum { RUNNING = 0, LOCKED = 1, CHECKPOINTED = 2, FAILED = 3 } CUprocessState;
typedef struct { unsigned int timeoutMs, reserved0; uint64_t reserved1[7]; } CUcheckpointLockArgs;
typedef struct { uint64_t reserved[8]; } Reserved; /* of the others: all zero, or none given */

static int initialised;
static int known; /* the pid of the one process */
static CUprocessState state;

CUresult cuInit(unsigned int flags) {
    if (flags) return INVALID_VALUE;
    initialised = 1;
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char **name) {
    *name = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : error ? "CUDA_ERROR_OTHER" : "CUDA_SUCCESS";
    return CUDA_SUCCESS;
}
static CUresult go(int pid, CUprocessState from, CUprocessState to) {
    if (!initialised) return NOT_INITIALIZED;
    if (pid <= 0 || kill(pid, 0)) return INVALID_VALUE;
    if (pid != known) { known = pid; state = RUNNING; }
    if (state != from) return ILLEGAL_STATE;
    state = to;
    return CUDA_SUCCESS;
}
static int is_zero(const Reserved *args) {
    static const Reserved nothing;
    return !args || !memcmp(args, &nothing, sizeof nothing);
}
CUresult cuCheckpointProcessGetState(int pid, CUprocessState *found) {
    *found = pid == known ? state : RUNNING;
    return initialised ? CUDA_SUCCESS : NOT_INITIALIZED;
}
CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
    if (!args || !args->timeoutMs || args->timeoutMs > 600000 || args->reserved0) return INVALID_VALUE;
    for (int i = 0; i < 7; i++)
        if (args->reserved1[i]) return INVALID_VALUE;
    return go(pid, RUNNING, LOCKED);
}
CUresult cuCheckpointProcessCheckpoint(int pid, Reserved *args) { return is_zero(args) ? go(pid, LOCKED, CHECKPOINTED) : INVALID_VALUE; }
CUresult cuCheckpointProcessRestore(int pid, Reserved *args) {
    const char *fails = getenv("PARK_FAILS");
    if (fails) return atoi(fails);
    return is_zero(args) ? go(pid, CHECKPOINTED, LOCKED) : INVALID_VALUE;
}
CUresult cuCheckpointProcessUnlock(int pid, Reserved *args) { return is_zero(args) ? go(pid, LOCKED, RUNNING) : INVALID_VALUE; }
