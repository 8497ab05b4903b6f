/* A libnvidia-ml.so.1 of two GPUs, with the types of NVIDIA's nvml.h (driver 580), for test_ctypes.py.
 *
 * GPU 0 is a data centre card that answers everything. GPU 1 is a GeForce: no ECC, no row remapping, no recovery
 * action, no MIG, no version 2 of the memory query, and processes whose memory is not said.
 */
#include <string.h>
#include <unistd.h>

typedef struct card *device_t;
struct card {
    const char *uuid, *name, *bus;
    int geforce;
};
static struct card cards[2] = {
    {"GPU-11111111-2222-3333-4444-555555555555", "NVIDIA H100 80GB HBM3", "00000000:18:00.0", 0},
    {"GPU-66666666-7777-8888-9999-000000000000", "NVIDIA GeForce RTX 4090", "00000000:3B:00.0", 1},
};

enum { OK, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, INSUFFICIENT_SIZE };
#define GIB (1024ull * 1024 * 1024)
#define SMALLER(device) ((device)->geforce)
#define UNLESS_SMALLER(device) if ((device)->geforce) return NOT_SUPPORTED

typedef struct { char busIdLegacy[16]; unsigned domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; } pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned pid; unsigned long long usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; } process_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef union { double d; int si; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; unsigned short us; } value_t;
typedef struct { unsigned fieldId, scopeId; long long timestamp, latencyUsec; int valueType; int nvmlReturn; value_t value; } field_t;

static int started;

int nvmlInitWithFlags(unsigned flags) { started++; return flags ? INVALID_ARGUMENT : OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == 4711 ? "Never Heard Of" : "Some Error"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    if (size < 80) return INSUFFICIENT_SIZE;
    strcpy(text, "580.82.07");
    return OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return started ? OK : UNINITIALIZED; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    if (index > 1) return INVALID_ARGUMENT;
    *device = &cards[index];
    return OK;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device_t *device) {
    for (int i = 0; i < 2; i++)
        if (!strcmp(bus, cards[i].bus)) { *device = &cards[i]; return OK; }
    return NOT_FOUND;
}
int nvmlDeviceGetUUID(device_t device, char *text, unsigned size) {
    if (size < 80) return INSUFFICIENT_SIZE;
    strcpy(text, device->uuid);
    return OK;
}
int nvmlDeviceGetName(device_t device, char *text, unsigned size) {
    if (size < 64) return INSUFFICIENT_SIZE;
    strcpy(text, device->name);
    return OK;
}
int nvmlDeviceGetPciInfo_v3(device_t device, pci_t *pci) {
    memset(pci, 0xff, sizeof *pci); /* what is not set is rubbish */
    strcpy(pci->busIdLegacy, device->bus + 4);
    strcpy(pci->busId, device->bus);
    return OK;
}
int nvmlDeviceGetMigMode(device_t device, unsigned *now, unsigned *then) { UNLESS_SMALLER(device); *now = *then = 0; return OK; }
int nvmlDeviceGetCpuAffinity(device_t device, unsigned words, unsigned long *set) {
    memset(set, 0, words * sizeof *set);
    set[0] = device->geforce ? 0xf0 : 0x800000000000000ful;
    return OK;
}
int nvmlDeviceGetPersistenceMode(device_t device, int *mode) { *mode = !SMALLER(device); return OK; }

int nvmlDeviceGetMemoryInfo(device_t device, memory_t *memory) {
    memory->total = 80 * GIB;
    memory->used = device->geforce ? 3 * GIB : 1 * GIB;
    memory->free = memory->total - memory->used;
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(device_t device, memory_v2_t *memory) {
    UNLESS_SMALLER(device);
    if (memory->version != (sizeof *memory | 2u << 24)) return 25; /* NVML_ERROR_ARGUMENT_VERSION_MISMATCH */
    memory->total = 80 * GIB;
    memory->reserved = 1 * GIB - (4 << 20);
    memory->used = 4 << 20;
    memory->free = memory->total - memory->reserved - memory->used;
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, process_t *infos) {
    unsigned there = device->geforce ? 2 : 0, room = *count;
    *count = there;
    if (room < there) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < there; i++)
        infos[i] = (process_t){i ? 1 : getpid(), i ? GIB : ~0ull, ~0u, ~0u};
    return OK;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t device, unsigned *count, process_t *infos) {
    unsigned there = device->geforce, room = *count;
    *count = there;
    if (room < there) return INSUFFICIENT_SIZE;
    if (there) infos[0] = (process_t){1, GIB / 2, ~0u, ~0u};
    return OK;
}

int nvmlDeviceGetUtilizationRates(device_t device, utilization_t *rates) { rates->gpu = 37 + device->geforce; rates->memory = 5; return OK; }
int nvmlDeviceGetTemperature(device_t device, int sensor, unsigned *heat) { *heat = 61; return sensor || !device ? INVALID_ARGUMENT : OK; }
int nvmlDeviceGetPowerUsage(device_t device, unsigned *mw) { *mw = 123456; return device ? OK : INVALID_ARGUMENT; }
int nvmlDeviceGetCurrentClocksEventReasons(device_t device, unsigned long long *reasons) { *reasons = 0x40; return device ? OK : INVALID_ARGUMENT; }
int nvmlDeviceGetFieldValues(device_t device, int count, field_t *values) {
    for (int i = 0; i < count; i++) {
        values[i].nvmlReturn = device->geforce || values[i].fieldId != 230 ? NOT_SUPPORTED : OK;
        values[i].valueType = 1; /* unsigned int: the upper half says nothing */
        values[i].value.ull = 0xdeadbeef00000000ull | 4;
    }
    return OK;
}
