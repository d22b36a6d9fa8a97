/** Terms that views explain behind a "?". `generate_api.py` writes them into the glossary, `extension/GLOSSARY.md`. */

/** Base URL of the terms' pages. */
export const DOCUMENTATION = 'https://github.com/gipfel-hpc/gipfel/blob/main/';

/** A term, its meaning in two sentences, and a page of the documentation. */
export interface ITerm {
  readonly name: string;
  readonly text: string;
  readonly page: string;
}

const SATURATION = 'extension/gipfel_extension/saturation/README.md';
const TELEMETRY = 'extension/gipfel_extension/telemetry/README.md';
const LAUNCHES = 'extension/gipfel_extension/training/launches/README.md';
const VETTING = 'extension/gipfel_extension/vetting/README.md';
const DIAGNOSIS = 'extension/gipfel_extension/diagnosis/README.md';

export const SCORE: ITerm = {
  name: 'score',
  text: 'How close the GPUs came to what they can do, from 0 to 100. What is missing to 100 is divided into losses.',
  page: SATURATION
};

export const BOTTLENECK: ITerm = {
  name: 'bottleneck',
  text: 'What the GPUs were limited by most of the time: compute, memory or interconnect. More of another resource would not make the program faster.',
  page: SATURATION
};

export const LOSS: ITerm = {
  name: 'loss',
  text: 'Points of the score that one cause cost. Losses and score add up to 100.',
  page: SATURATION
};

/** The losses of a score by their keys. */
export const LOSSES: Readonly<Record<string, ITerm>> = {
  idle: {
    name: 'idle',
    text: 'Nothing ran on the GPU, and no other cause is known. Look at what the program does between its steps.',
    page: SATURATION
  },
  input: {
    name: 'input',
    text: 'The GPU waited for data. In a terminal `gipfel data try DATA --run RUN` measures what suffices: more workers, or data packed into one file.',
    page: SATURATION
  },
  launch: {
    name: 'launch',
    text: 'The GPU waited between many small kernels, which take longer to start than to run. Larger batches, CUDA graphs or torch.compile start fewer.',
    page: SATURATION
  },
  occupancy: {
    name: 'occupancy',
    text: 'Kernels ran, but on a part of the GPU’s processors (SMs) or with few threads on each. Larger batches or tensors fill more of them.',
    page: SATURATION
  },
  imbalance: {
    name: 'imbalance',
    text: 'Some GPUs waited for slower ones. The cause is uneven work, or a node that is slower than its peers.',
    page: SATURATION
  },
  communication: {
    name: 'communication',
    text: 'GPUs exchanged data instead of computing. Overlapping both, or fewer and larger messages, costs less.',
    page: SATURATION
  },
  checkpoint: {
    name: 'checkpoint',
    text: 'Training stood still while a checkpoint was saved. Saving in the background shortens the pause.',
    page: SATURATION
  },
  capped: {
    name: 'capped',
    text: 'The GPU lowered its clock because of heat or a power limit. The node’s operator can tell whether that is intended.',
    page: SATURATION
  },
  start_up: {
    name: 'start-up',
    text: 'Time before the first step, such as imports and loading the model. It weighs less the longer the run is.',
    page: SATURATION
  },
  unexplained: {
    name: 'unexplained',
    text: 'Points that no recorded metric explains. Shorter intervals between samples often explain more.',
    page: SATURATION
  }
};

export const CONFIDENCE: ITerm = {
  name: 'confidence',
  text: 'How much the samples support the score, from 0 to 1. Few samples, long intervals and missing metrics lower it.',
  page: SATURATION
};

export const ACTIVITY: ITerm = {
  name: 'SM, tensor, DRAM',
  text: 'The share of time in which the processors (SMs), the matrix units (tensor) and the memory (DRAM) of a GPU worked. Utilization is 100 % as soon as any kernel runs, so that it says less.',
  page: TELEMETRY
};

export const WORKLOAD: ITerm = {
  name: 'workload',
  text: 'What keeps running when its notebook is closed: a training launch, a batch notebook, a service. This list, gipfel ps and the hub show the same ones.',
  page: 'spawner/gipfel_cluster/workloads/README.md'
};

export const RANK: ITerm = {
  name: 'rank',
  text: 'One process of a training on several GPUs; usually each has one GPU. Ranks are numbered from 0 over all nodes.',
  page: LAUNCHES
};

export const PREFLIGHT: ITerm = {
  name: 'pre-flight',
  text: 'Checks before any rank starts: Python and torch in the image, free GPUs, files, disk space. A launch that would fail is refused here within seconds.',
  page: LAUNCHES
};

export const FLIGHT_RECORDER: ITerm = {
  name: 'flight recorder',
  text: 'torch records the last collective operations of each rank and writes them when a launch hangs. Comparing them shows which rank did not arrive.',
  page: LAUNCHES
};

export const VETTING_RUN: ITerm = {
  name: 'vetting',
  text: 'Short tests of the job’s nodes before they are used: GPUs, memory, disks and network. Only what was tested and passed counts as vetted.',
  page: VETTING
};

export const PROTOCOL: ITerm = {
  name: 'protocol',
  text: 'A YAML file that lists the checks of a vetting with their limits. A copy beside your notebook can be changed.',
  page: VETTING
};

export const VERDICT: ITerm = {
  name: 'verdict',
  text: 'What the checks say of a node together: pass, degraded, fail, inconclusive or not run. Only a pass counts as vetted.',
  page: VETTING
};

export const DIAGNOSIS_VERDICT: ITerm = {
  name: 'verdict of a run',
  text: 'A sentence about a rank, stage or node that differs from its peers, with the samples that show it. It is shown only where errors are rare, else nothing is said.',
  page: DIAGNOSIS
};

export const ROLE: ITerm = {
  name: 'role',
  text: 'What a rank does, by its coordinates in the layout: dp (data), pp (pipeline stage), tp (tensor). An expression such as pp=0 & dp=1 selects ranks on all tabs.',
  page: 'extension/gipfel_extension/job/README.md'
};

export const GPU_HOURS: ITerm = {
  name: 'GPU hours',
  text: 'Number of GPUs times hours, as accounts of a cluster count them. A GPU counts while it is allocated, also when it idles.',
  page: 'extension/gipfel_extension/telemetry/README.md'
};
