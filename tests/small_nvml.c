/*
 * A handful of NVML's functions, written from its interface alone: what the compiler makes of these declarations is
 * held against the layouts of the simulated library, and the dynamic linker loads it as it would load a driver's.
 *
 * Two GPUs that never change. SMALL_NVML_FAULTS may name a file of lines "hang FUNCTION GPU" and "crash FUNCTION GPU"
 * (GPU -1 for functions that concern none); it is looked at in every call, and a call that hangs ends with its line.
 * A line "module VERSION NUMBER" is the kernel module: a library of another version does not initialise, and what was
 * initialised before the module was loaded that many times answers no more.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef DRIVER
#define DRIVER "580.173.02"
#endif
#ifndef PRODUCT
#define PRODUCT "NVIDIA H100 80GB HBM3"
#endif
#ifndef UUID_0
#define UUID_0 "GPU-00000000-0000-4000-8000-000000000000"
#endif
#ifndef UUID_1
#define UUID_1 "GPU-11111111-1111-4111-8111-111111111111"
#endif

#define EXPORT __attribute__((visibility("default")))
#define GPUS 2

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    LIB_RM_VERSION_MISMATCH = 18, VERSION_MISMATCH = 25, UNKNOWN = 999
};

typedef struct gpu { unsigned int index; const char *bus_id, *uuid; unsigned int bus; } *device_t;

typedef struct {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_info_t;

typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct { unsigned int version; unsigned int sensor; int temperature; } temperature_t;
typedef struct { unsigned int pid; unsigned long long memory; unsigned int gpu_instance, compute_instance; } process_t;

typedef union {
    double d; unsigned int ui; unsigned long ul; unsigned long long ull; signed long long sll; int si; unsigned short us;
} value_t;

typedef struct {
    unsigned int field, scope;
    long long timestamp, latency;
    int type;
    int code;
    value_t value;
} field_value_t;

static struct gpu gpus[GPUS] = {{0, "00000000:1B:00.0", UUID_0, 0x1B}, {1, "00000000:43:00.0", UUID_1, 0x43}};
static int users, loaded;

typedef struct { char kind[16], name[64]; int number; } line_t;

static int find(int (*wanted)(const line_t *, const line_t *), const line_t *like, line_t *found)
{
    const char *path = getenv("SMALL_NVML_FAULTS");
    FILE *file = path ? fopen(path, "r") : NULL;
    int is = 0;
    if (!file)
        return 0;
    while (!is && fscanf(file, "%15s %63s %d", found->kind, found->name, &found->number) == 3)
        is = wanted(found, like);
    fclose(file);
    return is;
}

static int same(const line_t *one, const line_t *other)
{
    return one->number == other->number && !strcmp(one->kind, other->kind) && !strcmp(one->name, other->name);
}

static int same_kind(const line_t *one, const line_t *other) { return !strcmp(one->kind, other->kind); }

static int faulty(const char *kind, const char *function, int gpu)
{
    line_t like = {.number = gpu}, found;
    strncpy(like.kind, kind, sizeof like.kind - 1);
    strncpy(like.name, function, sizeof like.name - 1);
    return find(same, &like, &found);
}

static line_t module(void)
{
    line_t like = {.kind = "module"}, found;
    return find(same_kind, &like, &found) ? found : (line_t){"module", DRIVER, 0};
}

static void suffer(const char *function, int gpu)
{
    struct timespec moment = {0, 50000000};
    if (faulty("crash", function, gpu))
        *(volatile int *)8 = 0;
    while (faulty("hang", function, gpu))
        nanosleep(&moment, NULL);
}

#define ENTER(gpu)                            \
    do {                                      \
        if (!users)                           \
            return UNINITIALIZED;             \
        if (module().number != loaded)        \
            return UNKNOWN;                   \
        suffer(__func__, gpu);                \
    } while (0)

#define ENTER_GPU(device)                                       \
    do {                                                        \
        if (!users)                                             \
            return UNINITIALIZED;                               \
        if (module().number != loaded)                          \
            return UNKNOWN;                                     \
        if ((device) != &gpus[0] && (device) != &gpus[1])       \
            return INVALID_ARGUMENT;                            \
        suffer(__func__, (int)(device)->index);                 \
    } while (0)

static int text(char *out, unsigned int length, const char *from)
{
    if (!out)
        return INVALID_ARGUMENT;
    if (strlen(from) + 1 > length)
        return INSUFFICIENT_SIZE;
    strcpy(out, from);
    return SUCCESS;
}

EXPORT int nvmlInitWithFlags(unsigned int flags)
{
    line_t now = module();
    (void)flags;
    suffer(__func__, -1);
    if (strcmp(now.name, DRIVER))
        return LIB_RM_VERSION_MISMATCH;
    if (!users++)
        loaded = now.number;
    return SUCCESS;
}

EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT int nvmlShutdown(void)
{
    if (!users)
        return UNINITIALIZED;
    suffer(__func__, -1);
    users--;
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(int code)
{
    switch (code) {
    case SUCCESS: return "Success";
    case VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown";
    }
}

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned int length)
{
    ENTER(-1);
    return text(out, length, DRIVER);
}

EXPORT int nvmlSystemGetNVMLVersion(char *out, unsigned int length)
{
    ENTER(-1);
    return text(out, length, "13." DRIVER);
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *out)
{
    ENTER(-1);
    *out = 13000;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned int *out)
{
    ENTER(-1);
    *out = GPUS;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device_t *out)
{
    if (!users)
        return UNINITIALIZED;
    if (module().number != loaded)
        return UNKNOWN;
    if (index >= GPUS)
        return INVALID_ARGUMENT;
    suffer(__func__, (int)index);
    *out = &gpus[index];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, device_t *out)
{
    if (!users)
        return UNINITIALIZED;
    if (module().number != loaded)
        return UNKNOWN;
    for (int n = 0; n < GPUS; n++)
        if (!strcasecmp(bus_id, gpus[n].bus_id) || !strcasecmp(bus_id, gpus[n].bus_id + 4)) {
            suffer(__func__, n);
            *out = &gpus[n];
            return SUCCESS;
        }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetIndex(device_t device, unsigned int *out)
{
    ENTER_GPU(device);
    *out = device->index;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMinorNumber(device_t device, unsigned int *out)
{
    ENTER_GPU(device);
    *out = device->index;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetName(device_t device, char *out, unsigned int length)
{
    ENTER_GPU(device);
    return text(out, length, PRODUCT);
}

EXPORT int nvmlDeviceGetUUID(device_t device, char *out, unsigned int length)
{
    ENTER_GPU(device);
    return text(out, length, device->uuid);
}

EXPORT int nvmlDeviceGetPciInfo_v3(device_t device, pci_info_t *out)
{
    ENTER_GPU(device);
    memset(out, 0, sizeof *out);
    strcpy(out->bus_id_legacy, device->bus_id + 4);
    strcpy(out->bus_id, device->bus_id);
    out->bus = device->bus;
    out->device_id = 0x233010DE;
    out->subsystem_id = 0x16C110DE;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(device_t device, memory_t *out)
{
    ENTER_GPU(device);
    out->total = 85520809984ull;
    out->used = 12884901888ull + 502267904ull;
    out->free = out->total - out->used;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(device_t device, memory_v2_t *out)
{
    ENTER_GPU(device);
    if (out->version != (sizeof *out | 2 << 24))
        return VERSION_MISMATCH;
    out->total = 85520809984ull;
    out->reserved = 502267904ull;
    out->used = 12884901888ull;
    out->free = out->total - out->reserved - out->used;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetUtilizationRates(device_t device, utilization_t *out)
{
    ENTER_GPU(device);
    out->gpu = 37;
    out->memory = 21;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTemperatureV(device_t device, temperature_t *inout)
{
    ENTER_GPU(device);
    if (inout->version != (sizeof *inout | 1 << 24))
        return VERSION_MISMATCH;
    inout->temperature = 57;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned int *count, process_t *out)
{
    unsigned int room = *count;
    ENTER_GPU(device);
    *count = 1;
    if (room < 1)
        return INSUFFICIENT_SIZE;
    out[0] = (process_t){2000000 + device->index, 12884901888ull, 0xFFFFFFFF, 0xFFFFFFFF};
    return SUCCESS;
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t device, unsigned int *count, process_t *out)
{
    (void)out;
    ENTER_GPU(device);
    *count = 0;
    return SUCCESS;
}

static void answer(field_value_t *entry)
{
    entry->timestamp = (long long)time(NULL) * 1000000;
    entry->latency = 3;
    entry->code = SUCCESS;
    switch (entry->field) {
    case 82: entry->type = 1; entry->value.ui = 61; break;
    case 83: entry->type = 3; entry->value.ull = 123456789012ull; break;
    case 91: entry->type = 1; entry->value.ui = 18; break;
    case 165:
        entry->type = 1;
        entry->value.ui = entry->scope != 3;
        if (entry->scope >= 18)
            entry->code = INVALID_ARGUMENT;
        break;
    case 185: entry->type = 1; entry->value.ui = 412000; break;
    case 194: entry->type = 5; entry->value.si = -2; break;
    default: entry->code = NOT_SUPPORTED;
    }
}

EXPORT int nvmlDeviceGetFieldValues(device_t device, int count, field_value_t *values)
{
    ENTER_GPU(device);
    for (int n = 0; n < count; n++)
        answer(&values[n]);
    return SUCCESS;
}
