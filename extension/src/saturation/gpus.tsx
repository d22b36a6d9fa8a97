import type { TranslationBundle } from '@jupyterlab/translation';
import { closeIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { IDevice } from '../api';
import { Figure } from './figure';
import type { SaturationModel } from './model';

const FLASH_MS = 1500;

/** The plots of each selected GPU; only those in view are requested and drawn. */
export function Gpus(props: { model: SaturationModel; trans: TranslationBundle }): React.JSX.Element {
  const { model, trans } = props;
  const several = new Set(model.selection.gpus.map(gpu => gpu.node)).size > 1;
  const shown = model.selection.gpus.filter(gpu => model.selection.selected.includes(gpu.uuid));
  const others = model.selection.gpus.filter(gpu => !model.selection.selected.includes(gpu.uuid));
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
                model.selection.toggleGpu(event.target.value);
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
        {model.selection.gpus.length > 1 && (
          <label className="jp-Gipfel-check">
            <input
              type="checkbox"
              checked={model.selection.all}
              onChange={() => {
                model.selection.toggleAll();
              }}
            />
            {trans.__('all %1', model.selection.gpus.length)}
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
    model.selection.setInView(gpu.uuid, inView);
    return (): void => {
      model.selection.setInView(gpu.uuid, false);
    };
  }, [model, gpu.uuid, inView]);
  React.useEffect(() => {
    if (node.current && model.selection.consumeReveal(gpu.uuid)) {
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
        {!model.selection.all && (
          <button
            className="jp-Gipfel-icon"
            title={trans.__('Hide %1', name)}
            aria-label={trans.__('Hide %1', name)}
            onClick={() => {
              model.selection.toggleGpu(gpu.uuid);
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

/** Return true while a node is in view, or near it. */
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
      // A margin, so that the plot is drawn before it is scrolled into view.
      { rootMargin: '120px 0px' }
    );
    observer.observe(node.current);
    return (): void => {
      observer.disconnect();
    };
  }, [node]);
  return inView;
}

/** Return the name of a GPU: its index, and its node if there are several. */
export function gpuName(gpu: IDevice, several: boolean): string {
  const number = gpu.index ?? gpu.uuid.slice(0, 12);
  return several && gpu.node ? `${gpu.node} · GPU ${number}` : `GPU ${number}`;
}
