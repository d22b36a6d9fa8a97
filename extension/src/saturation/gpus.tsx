import type { TranslationBundle } from '@jupyterlab/translation';
import { closeIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { IDevice } from '../api';
import { Figure } from './figure';
import type { SaturationModel } from './model';

const FLASH_MS = 1500;

/** The plots of the chosen GPUs, one by one; only those in view are asked for and drawn. */
export function Gpus(props: { model: SaturationModel; trans: TranslationBundle }): React.JSX.Element {
  const { model, trans } = props;
  const several = new Set(model.shown.gpus.map(gpu => gpu.node)).size > 1;
  const shown = model.shown.gpus.filter(gpu => model.shown.selected.includes(gpu.uuid));
  const others = model.shown.gpus.filter(gpu => !model.shown.selected.includes(gpu.uuid));
  return (
    <section className="jp-Gipfel-view" aria-label={trans.__('GPU by GPU')}>
      <div className="jp-Gipfel-viewHead">
        <h3>{trans.__('GPU by GPU')}</h3>
        {others.length > 0 && (
          <label>
            <span className="jp-Gipfel-hidden">{trans.__('Show a GPU')}</span>
            <select
              value=""
              onChange={event => {
                model.shown.toggleGpu(event.target.value);
              }}
            >
              <option value="">{trans.__('show…')}</option>
              {others.map(gpu => (
                <option key={gpu.uuid} value={gpu.uuid}>
                  {gpuName(gpu, several)}
                </option>
              ))}
            </select>
          </label>
        )}
        {model.shown.gpus.length > 1 && (
          <label className="jp-Gipfel-check">
            <input
              type="checkbox"
              checked={model.shown.all}
              onChange={() => {
                model.shown.toggleAll();
              }}
            />
            {trans.__('all %1', model.shown.gpus.length)}
          </label>
        )}
      </div>
      {shown.map(gpu => (
        <Gpu key={gpu.uuid} gpu={gpu} name={gpuName(gpu, several)} model={model} trans={trans} />
      ))}
    </section>
  );
}

interface IGpuProps {
  readonly gpu: IDevice;
  readonly name: string;
  readonly model: SaturationModel;
  readonly trans: TranslationBundle;
}

function Gpu(props: IGpuProps): React.JSX.Element {
  const { gpu, name, model, trans } = props;
  const node = React.useRef<HTMLDivElement>(null);
  const inView = useInView(node);
  React.useEffect(() => {
    model.shown.setInView(gpu.uuid, inView);
    return (): void => {
      model.shown.setInView(gpu.uuid, false);
    };
  }, [model, gpu.uuid, inView]);
  React.useEffect(() => {
    if (node.current && model.shown.takeRevealed(gpu.uuid)) {
      node.current.scrollIntoView({ block: 'nearest' });
      const colour = getComputedStyle(node.current).getPropertyValue('--jp-brand-color3');
      node.current.animate([{ backgroundColor: colour }, { backgroundColor: 'transparent' }], FLASH_MS);
    }
  });

  const score = model.score?.gpus.find(each => each.uuid === gpu.uuid)?.score;
  return (
    <div className="jp-Gipfel-gpu" data-gpu={gpu.uuid} ref={node}>
      <div className="jp-Gipfel-gpuHead">
        <h4>{name}</h4>
        <span className="jp-Gipfel-small">
          {gpu.name.replace(/^NVIDIA /, '')}
          {typeof score === 'number' && ` · ${trans.__('score %1', Math.round(score))}`}
        </span>
        {!model.shown.all && (
          <button
            className="jp-Gipfel-icon"
            title={trans.__('Hide %1', name)}
            aria-label={trans.__('Hide %1', name)}
            onClick={() => {
              model.shown.toggleGpu(gpu.uuid);
            }}
          >
            <closeIcon.react tag="span" height="16px" width="16px" />
          </button>
        )}
      </div>
      {inView && (
        <Figure
          model={model}
          name={`gpu/${gpu.uuid}`}
          label={trans.__('Activity, links, clock and power of %1', name)}
          trans={trans}
        />
      )}
    </div>
  );
}

/** Whether a node is on the screen, or almost. */
function useInView(node: React.RefObject<HTMLElement | null>): boolean {
  const [inView, setInView] = React.useState(false);
  React.useEffect(() => {
    if (!node.current) {
      return undefined;
    }
    const observer = new IntersectionObserver(
      entries => {
        setInView(entries.some(entry => entry.isIntersecting));
      },
      // A little ahead, so that it is there when it is scrolled to.
      { rootMargin: '120px 0px' }
    );
    observer.observe(node.current);
    return (): void => {
      observer.disconnect();
    };
  }, [node]);
  return inView;
}

/** How people call a GPU: its number, with its node where there are several. */
export function gpuName(gpu: IDevice, several: boolean): string {
  const number = gpu.index ?? gpu.uuid.slice(0, 12);
  return several && gpu.node ? `${gpu.node} · GPU ${number}` : `GPU ${number}`;
}
