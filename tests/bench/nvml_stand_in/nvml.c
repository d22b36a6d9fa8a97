/* A libnvidia-ml.so.1 of many GPUs with GPM on a machine that has none: it answers at once, with made-up numbers,
 * laid out as NVML's C header says. $NVML_STAND_IN_GPUS is their number (16). $NVML_STAND_IN_XIDS names a file whose
 * lines "<gpu> <xid>" are reported once; lines "<gpu> <pid>" of $NVML_STAND_IN_PIDS are processes that compute. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, MOST = 64 };

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned version, supported; } gpm_support;
typedef struct { int taken, gpu; } gpm_sample;
typedef struct {
  unsigned id;
  int result;
  double value;
  struct { char *short_name, *long_name, *unit; } info;
} gpm_metric;
typedef struct {
  unsigned version, count;
  gpm_sample *first, *second;
  gpm_metric metrics[];
} gpm_request;
typedef struct {
  unsigned id, scope;
  long long timestamp, latency;
  unsigned type;
  int result;
  unsigned long long value;
} field_value;
typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute; } process;
typedef struct { void *device; unsigned long long type, data; unsigned instance, compute; } event;

static int gpus[MOST];

static unsigned count_gpus(void) {
  const char *given = getenv("NVML_STAND_IN_GPUS");
  unsigned number = given ? (unsigned)atoi(given) : 16;
  return number < MOST ? number : MOST;
}
static unsigned number_of(void *device) { return (unsigned)((int *)device - gpus); }
/* From 0 to 1, another for each GPU and second. */
static double level(unsigned gpu) { return (double)((time(NULL) + 7 * gpu) % 10) / 10.0; }

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { return flags ? INVALID_ARGUMENT : SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "Error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "stand-in"); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = count_gpus(); return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  if (index >= count_gpus()) return INVALID_ARGUMENT;
  *device = &gpus[index];
  return SUCCESS;
}
int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = number_of(device); return SUCCESS; }
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) { *minor = number_of(device); return SUCCESS; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
  snprintf(text, size, "GPU-57a9d000-0000-4000-8000-%012u", number_of(device));
  return SUCCESS;
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) { snprintf(text, size, "NVML stand-in"); return SUCCESS; }
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *next) { return NOT_SUPPORTED; }
int nvmlDeviceGetUtilizationRates(void *device, utilization *rates) {
  rates->gpu = (unsigned)(100 * level(number_of(device)));
  rates->memory = rates->gpu / 2;
  return SUCCESS;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { *milliwatts = 612345; return SUCCESS; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) { *mj = 1000ull * (unsigned long long)time(NULL); return SUCCESS; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees) { *degrees = 61; return SUCCESS; }
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *megahertz) { *megahertz = 1980; return SUCCESS; }
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) { *reasons = 0; return SUCCESS; }
int nvmlDeviceGetMemoryInfo(void *device, memory_v1 *memory) {
  memory->total = 85899345920ull; memory->used = 42949672960ull; memory->free = memory->total - memory->used;
  return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *memory) {
  memory->total = 85899345920ull; memory->reserved = 500000000ull; memory->used = 42949672960ull;
  memory->free = memory->total - memory->used - memory->reserved;
  return SUCCESS;
}
int nvmlDeviceGetPcieThroughput(void *device, int counter, unsigned *kilobytes) { *kilobytes = 1000000; return SUCCESS; }
int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *generation) { *generation = 5; return SUCCESS; }
int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *width) { *width = 16; return SUCCESS; }
int nvmlDeviceGetNvLinkVersion(void *device, unsigned link, unsigned *version) { *version = 7; return SUCCESS; }
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) { *active = 1; return SUCCESS; }
int nvmlDeviceGetFieldValues(void *device, int count, field_value *values) {
  for (int i = 0; i < count; i++) {
    values[i].result = SUCCESS;
    values[i].type = 3; /* unsigned long long */
    values[i].value = 1000000ull * (unsigned long long)time(NULL);
  }
  return SUCCESS;
}

/* Lines of two numbers from the file that a variable names, each handed to `each`. */
static int lines_of(const char *variable, unsigned gpu, unsigned long *found, int most) {
  const char *name = getenv(variable);
  FILE *file = name ? fopen(name, "r") : NULL;
  int count = 0;
  unsigned where;
  unsigned long value;
  while (file && count < most && fscanf(file, "%u %lu", &where, &value) == 2)
    if (where == gpu) found[count++] = value;
  if (file) fclose(file);
  return count;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *infos) {
  unsigned long pids[MOST];
  unsigned room = *count;
  *count = (unsigned)lines_of("NVML_STAND_IN_PIDS", number_of(device), pids, MOST);
  if (*count > room) return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < *count; i++) infos[i] = (process){(unsigned)pids[i], 1ull << 30, ~0u, ~0u};
  return SUCCESS;
}

static int event_set, told[MOST];
int nvmlEventSetCreate(void **set) { *set = &event_set; return SUCCESS; }
int nvmlEventSetFree(void *set) { return SUCCESS; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) { return SUCCESS; }
int nvmlEventSetWait_v2(void *set, event *found, unsigned milliseconds) {
  for (unsigned gpu = 0; gpu < count_gpus(); gpu++) {
    unsigned long numbers[MOST];
    int count = lines_of("NVML_STAND_IN_XIDS", gpu, numbers, MOST);
    if (told[gpu] < count) {
      *found = (event){&gpus[gpu], 8, numbers[told[gpu]++], ~0u, ~0u};
      return SUCCESS;
    }
  }
  return TIMEOUT;
}

int nvmlGpmQueryDeviceSupport(void *device, gpm_support *support) {
  support->supported = getenv("NVML_STAND_IN_OLD") == NULL;
  return SUCCESS;
}
int nvmlGpmSampleAlloc(gpm_sample **sample) { *sample = calloc(1, sizeof **sample); return SUCCESS; }
int nvmlGpmSampleFree(gpm_sample *sample) { free(sample); return SUCCESS; }
int nvmlGpmSampleGet(void *device, gpm_sample *sample) {
  sample->gpu = (int)number_of(device);
  sample->taken = 1;
  return SUCCESS;
}
int nvmlGpmMetricsGet(gpm_request *request) {
  if (request->version != 1 || !request->first->taken || !request->second->taken) return INVALID_ARGUMENT;
  for (unsigned i = 0; i < request->count; i++) {
    request->metrics[i].result = SUCCESS;
    /* Below 20 and from 30 to 59 per cent, else MiB/s. */
    int percent = request->metrics[i].id < 20 || (request->metrics[i].id >= 30 && request->metrics[i].id < 60);
    request->metrics[i].value = (percent ? 100.0 : 4000.0) * level((unsigned)request->second->gpu);
  }
  return SUCCESS;
}
