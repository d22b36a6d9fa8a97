import { nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';
import { createRoot } from 'react-dom/client';

import type { IBatchForm } from '../../src/api';
import { BatchDialogBody } from '../../src/batch/dialog';
import { type IBatchValues, valuesOf } from '../../src/batch/job-fields';

const trans = nullTranslator.load('gipfel');
const form: IBatchForm = {
  parameters: [{ name: 'lr', type: 'float', default: '0.1', help: 'learning rate' }],
  any_parameter: false,
  scheduler: 'slurm',
  schedulers: ['slurm', 'local'],
  edf: 'torch',
  edfs: ['ngc', 'torch'],
  output: 'train-run.ipynb'
};
const typed: IBatchValues = {
  parameters: {},
  scheduler: 'slurm',
  edf: ' /scratch/own.toml ',
  nodes: '2',
  gpus: '4',
  time: '2h',
  partition: 'normal',
  account: 'g123',
  qos: 'high',
  reservation: 'course',
  memory: '64G',
  output: 'out.ipynb',
  resume: false
};

(globalThis as { IS_REACT_ACT_ENVIRONMENT?: boolean }).IS_REACT_ACT_ENVIRONMENT = true;

/** Draw the dialog's form in the page. */
async function attached(body: BatchDialogBody): Promise<HTMLElement> {
  const node = document.body.appendChild(document.createElement('div'));
  const { render } = body as unknown as { render: () => React.JSX.Element };
  await React.act(async () => {
    createRoot(node).render(render.call(body));
    await Promise.resolve();
  });
  return node;
}

async function select(node: HTMLElement, name: string, value: string): Promise<void> {
  const field = node.querySelector<HTMLSelectElement>(`select[name=${name}]`);
  await React.act(async () => {
    if (field) {
      field.value = value;
    }
    field?.dispatchEvent(new Event('change', { bubbles: true }));
    await Promise.resolve();
  });
}

describe('the dialog of a batch job', () => {
  it('asks Slurm for QoS, reservation and memory, and this machine for none of them', async () => {
    const body = new BatchDialogBody('train.ipynb', form, trans, typed);
    const asked = { qos: 'high', reservation: 'course', memory: '64G', account: 'g123', partition: 'normal' };
    expect(body.getValue()).toMatchObject({ ...asked, edf: '/scratch/own.toml', nodes: 2 });
    const node = await attached(body);
    for (const name of ['qos', 'reservation', 'memory']) {
      expect(node.querySelector(`input[name=${name}]`)).not.toBeNull();
    }
    expect(node.textContent).toContain('learning rate');
    await select(node, 'scheduler', 'local');
    expect(node.querySelector('input[name=qos]')).toBeNull();
    expect(body.getValue()).toMatchObject({ qos: '', reservation: '', memory: '', scheduler: 'local' });
  });

  it('offers the known environments, and a field for another one', async () => {
    const body = new BatchDialogBody('dir/train.ipynb', form, trans);
    const node = await attached(body);
    const options = [...node.querySelectorAll<HTMLOptionElement>('select[name=edf] option')];
    expect(options.map(each => each.text)).toEqual([
      'none: without a container',
      'ngc',
      'torch',
      'another: name or path …'
    ]);
    expect(body.getValue()).toMatchObject({ edf: 'torch', output: 'dir/train-run.ipynb' });
    expect(node.querySelector('input[name=edf-path]')).toBeNull();
    await select(node, 'edf', 'ngc');
    expect(body.getValue().edf).toBe('ngc');
    await select(node, 'edf', options[3]?.value ?? '');
    expect(node.querySelector('input[name=edf-path]')).not.toBeNull();
  });

  it('shows the values of an earlier job, which make the same request', () => {
    const request = {
      ...{ path: 'train.ipynb', output: 'out.ipynb', parameters: { lr: '0.2' }, grid: { seed: '0..3' } },
      ...{ scheduler: 'slurm', edf: 'torch', nodes: 2, gpus_per_node: 4, time: '2h', partition: 'normal' },
      ...{ account: 'g123', qos: 'high', reservation: '', memory: '64G', resume: true }
    };
    const body = new BatchDialogBody('train.ipynb', form, trans, valuesOf(request));
    expect(body.getValue()).toEqual(request);
  });

  it('shows an environment that is not listed as typed', async () => {
    const body = new BatchDialogBody('train.ipynb', form, trans, typed);
    const node = await attached(body);
    expect(node.querySelector<HTMLInputElement>('input[name=edf-path]')?.value).toBe(' /scratch/own.toml ');
  });
});
