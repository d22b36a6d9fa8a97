import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IJobDocument } from '../api';

interface IDepth {
  readonly text: string;
  readonly page: string;
  readonly title: string;
}

/** One line below a tab: which further data it could show, what recording them costs, and a page about it. */
export function Depth(props: {
  tab: string;
  job: IJobDocument | null;
  trans: TranslationBundle;
}): React.JSX.Element | null {
  const { tab, job, trans } = props;
  const found = job === null ? null : depthOf(tab, job, trans);
  return found === null ? null : (
    <p className="jp-Gipfel-pad jp-Gipfel-small" data-depth={tab}>
      {trans.__('Deeper:')} {found.text}{' '}
      <a href={found.page} target="_blank" rel="noreferrer">
        {found.title}
      </a>
    </p>
  );
}

/** Return what a tab lacks most; null for tabs of other extensions. */
export function depthOf(tab: string, job: IJobDocument, trans: TranslationBundle): IDepth | null {
  switch (tab) {
    case 'overview':
      return job.metrics.length > 0 ? moreOverview(trans) : noStepRate(trans);
    case 'ranks':
      // The source of the parallel layout is empty where no layout is known.
      return job.source === '' ? noRoles(trans) : moreRanks(trans);
    case 'topology':
      return {
        text: trans.__(
          'NCCL writes the paths that it found between GPUs with NCCL_TOPO_DUMP_FILE=FILE at the start; it costs nothing.'
        ),
        page: 'https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-topo-dump-file',
        title: trans.__('NCCL’s variables')
      };
    case 'metrics':
      return {
        text: trans.__(
          'log(step=…, loss=…) of gipfel_widgets adds a metric by rank, a line in metrics.jsonl per call; files of TensorBoard, W&B and MLflow are read without a change.'
        ),
        page: 'https://docs.pytorch.org/docs/stable/tensorboard.html',
        title: trans.__('torch.utils.tensorboard')
      };
    case 'events':
      return {
        text: trans.__(
          'a rule of your own (a YAML file, see `gipfel rules --help`) becomes an event where it holds; recorders apply it at most once a minute.'
        ),
        page: 'https://docs.nvidia.com/deploy/xid-errors/index.html',
        title: trans.__('NVIDIA’s list of XID errors')
      };
    default:
      return ofRecords(tab, trans);
  }
}

/** Return what the tabs of communication, network and checkpoints lack; null for other tabs. */
function ofRecords(tab: string, trans: TranslationBundle): IDepth | null {
  switch (tab) {
    case 'communication':
      return {
        text: trans.__(
          'TORCH_NCCL_ENABLE_TIMING=1 at the start measures each collective on the GPU and costs two CUDA events per call; a dump of the flight recorder (tab Ranks) costs one write per rank; NCCL Inspector lists all collectives, with 200 to 500 bytes each, and has to be compiled for your NCCL.'
        ),
        page: 'https://github.com/NVIDIA/nccl/tree/master/plugins/profiler/inspector',
        title: trans.__('NCCL Inspector')
      };
    case 'network':
      return {
        text: trans.__(
          'behind a gate (`gipfel launch --allow-host HOST`), names of hosts and refused requests are listed too; every connection then goes through one proxy, which takes CPU time for each byte.'
        ),
        page: 'https://man7.org/linux/man-pages/man7/network_namespaces.7.html',
        title: trans.__('network namespaces')
      };
    case 'checkpoints':
      return {
        text: trans.__(
          '`gipfel checkpoints RUN --verify` checks all files that have a hash, which takes as long as reading them; writing in the background (gipfel_widgets.Checkpoints) takes memory for a copy and shortens the pauses.'
        ),
        page: 'https://docs.pytorch.org/docs/stable/distributed.checkpoint.html',
        title: trans.__('torch.distributed.checkpoint')
      };
    default:
      return null;
  }
}

function noStepRate(trans: TranslationBundle): IDepth {
  return {
    text: trans.__(
      'steps per second appear if the training logs its steps, or if its launch turns on the step hooks, which add under 0.5 % to a step of 10 ms.'
    ),
    page: 'https://docs.pytorch.org/docs/stable/optim.html#torch.optim.Optimizer.register_step_post_hook',
    title: trans.__('torch.optim')
  };
}

function moreOverview(trans: TranslationBundle): IDepth {
  return {
    text: trans.__(
      'a profiler trace of some steps (tab Ranks) shows kernels and waiting of a rank; steps take several times as long meanwhile.'
    ),
    page: 'https://docs.pytorch.org/docs/stable/profiler.html',
    title: trans.__('torch.profiler')
  };
}

function noRoles(trans: TranslationBundle): IDepth {
  return {
    text: trans.__(
      'with the parallel layout, ranks are compared with ranks of the same role: type it above (pp=2,dp=4), or start with `gipfel launch --layout`; it costs nothing.'
    ),
    page: 'https://docs.pytorch.org/docs/stable/distributed.html#devicemesh',
    title: trans.__('DeviceMesh')
  };
}

function moreRanks(trans: TranslationBundle): IDepth {
  return {
    text: trans.__(
      'stacks show where ranks are now, and pause them for some milliseconds; a flame graph shows where time goes, and a trace which kernels run.'
    ),
    page: 'https://github.com/benfred/py-spy#readme',
    title: trans.__('py-spy')
  };
}
