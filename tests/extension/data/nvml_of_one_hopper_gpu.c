/* An NVML with one GPU that has GPM: what the driver's library would answer, laid out as its C header says. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, ARGUMENT_VERSION_MISMATCH = 25 };

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned version, supported; } gpm_support;
typedef struct { int taken; } gpm_sample;
typedef struct {
  unsigned id;
  int result;
  double value;
  struct { char *short_name, *long_name, *unit; } info;
} gpm_metric;
typedef struct {
  unsigned version, count;
  gpm_sample *first, *second;
  gpm_metric metrics[]; /* the length grows with the driver; only `count` are read */
} gpm_request;

static int gpu, clock_of_samples;

int nvmlInitWithFlags(unsigned flags) { return flags ? INVALID_ARGUMENT : SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "Error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &gpu; return index ? INVALID_ARGUMENT : SUCCESS; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { snprintf(text, size, "GPU-0123-4567"); return SUCCESS; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) { snprintf(text, size, "NVIDIA H100 80GB HBM3"); return SUCCESS; }
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *next) { return NOT_SUPPORTED; }
int nvmlDeviceGetUtilizationRates(void *device, utilization *rates) { rates->gpu = 87; rates->memory = 40; return SUCCESS; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { *milliwatts = 612345; return SUCCESS; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) { *millijoules = 7654321000ull; return SUCCESS; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees) { *degrees = 61; return SUCCESS; }
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *megahertz) { return NOT_SUPPORTED; }
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) { *reasons = 0x44; return SUCCESS; }
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *memory) {
  if (memory->version != (sizeof(memory_v2) | 2u << 24)) return ARGUMENT_VERSION_MISMATCH;
  memory->total = 85899345920ull; memory->reserved = 500000000ull; memory->used = 42949672960ull;
  return SUCCESS;
}
int nvmlGpmQueryDeviceSupport(void *device, gpm_support *support) {
  if (support->version != 1) return ARGUMENT_VERSION_MISMATCH;
  support->supported = 1;
  return SUCCESS;
}
int nvmlGpmSampleAlloc(gpm_sample **sample) { *sample = calloc(1, sizeof **sample); return SUCCESS; }
int nvmlGpmSampleFree(gpm_sample *sample) { free(sample); return SUCCESS; }
int nvmlGpmSampleGet(void *device, gpm_sample *sample) {
  if (device != &gpu) return INVALID_ARGUMENT;
  sample->taken = ++clock_of_samples;
  return SUCCESS;
}
int nvmlGpmMetricsGet(gpm_request *request) {
  if (request->version != 1) return ARGUMENT_VERSION_MISMATCH;
  /* A window is made of two samples, the older one first. */
  if (!request->first->taken || request->second->taken != request->first->taken + 1) return INVALID_ARGUMENT;
  for (unsigned i = 0; i < request->count; i++) {
    gpm_metric *metric = &request->metrics[i];
    metric->result = metric->id == 11 ? NOT_SUPPORTED : SUCCESS;
    /* FP16 has no number; every other metric answers with its id, so that a mix-up shows. */
    uint64_t nan = 0x7ff8000000000000ull;
    metric->value = metric->id;
    if (metric->id == 13) memcpy(&metric->value, &nan, sizeof nan);
  }
  return SUCCESS;
}
