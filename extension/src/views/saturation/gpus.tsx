import * as React from 'react';

import type { IDevice, IScore } from '../../api';
import { Help } from '../term';
import { ACTIVITY } from '../terms';
import type { ITranslation } from '../translation';

const FLASH_MS = 1500;
/** Distance from the visible part at which the plots of a GPU are drawn. */
const MARGIN = '120px 0px';

/** The GPUs whose plots the user has selected, and those that are in view. */
export interface IGpuSelection {
  /** The GPUs of the run. */
  readonly gpus: readonly IDevice[];
  /** UUIDs of the GPUs whose plots are shown. */
  readonly selected: readonly string[];
  /** True to show the plots of all GPUs. */
  readonly all: boolean;
  toggleGpu(uuid: string): void;
  toggleAll(): void;
  /** Set whether the plots of a GPU are in view in one of the views, which `view` stands for. */
  setInView(uuid: string, view: object, inView: boolean): void;
  /** Return true once if the plots of a GPU are to be scrolled into view. */
  consumeReveal(uuid: string): boolean;
}

interface IGpusProps {
  readonly selection: IGpuSelection;
  readonly score: IScore | null;
  /** Draws the plots of a GPU with this name. */
  readonly plot: (gpu: IDevice, name: string) => React.ReactNode;
  readonly closeIcon: React.ReactNode;
  readonly trans: ITranslation;
}

/** The plots of each selected GPU; only those in view are requested and drawn. */
export function Gpus(props: IGpusProps): React.JSX.Element {
  const { selection, trans } = props;
  const several = new Set(selection.gpus.map(gpu => gpu.node)).size > 1;
  const shown = selection.gpus.filter(gpu => selection.selected.includes(gpu.uuid));
  const others = selection.gpus.filter(gpu => !selection.selected.includes(gpu.uuid));
  return (
    <section className="jp-Gipfel-view" aria-label={trans.__('GPU by GPU')}>
      <div className="jp-Gipfel-viewHead">
        <h3>
          {trans.__('GPU by GPU')} <Help term={ACTIVITY} trans={trans} />
        </h3>
        {others.length > 0 && (
          <select
            className="jp-Gipfel-field"
            aria-label={trans.__('Show a GPU')}
            value=""
            onChange={event => {
              selection.toggleGpu(event.target.value);
            }}
          >
            <option value="">{trans.__('show…')}</option>
            {others.map(gpu => (
              <option key={gpu.uuid} value={gpu.uuid}>
                {gpuName(gpu, several)}
              </option>
            ))}
          </select>
        )}
        {selection.gpus.length > 1 && (
          <label className="jp-Gipfel-check">
            <input
              type="checkbox"
              checked={selection.all}
              onChange={() => {
                selection.toggleAll();
              }}
            />
            {trans.__('all %1', selection.gpus.length)}
          </label>
        )}
      </div>
      <div className="jp-Gipfel-gpus">
        {shown.map(gpu => (
          <Gpu key={gpu.uuid} gpu={gpu} name={gpuName(gpu, several)} {...props} />
        ))}
      </div>
    </section>
  );
}

interface IGpuProps extends IGpusProps {
  readonly gpu: IDevice;
  readonly name: string;
}

function Gpu(props: IGpuProps): React.JSX.Element {
  const { gpu, name, selection, trans } = props;
  const node = React.useRef<HTMLDivElement>(null);
  const inView = useInView(node);
  React.useEffect(() => {
    selection.setInView(gpu.uuid, node, inView);
    return (): void => {
      selection.setInView(gpu.uuid, node, false);
    };
  }, [selection, gpu.uuid, inView]);
  React.useEffect(() => {
    if (node.current && selection.consumeReveal(gpu.uuid)) {
      node.current.scrollIntoView({ block: 'nearest' });
      const colour = getComputedStyle(node.current).getPropertyValue('--jp-brand-color3');
      node.current.animate([{ backgroundColor: colour }, { backgroundColor: 'transparent' }], FLASH_MS);
    }
  });

  const score = props.score?.gpus.find(each => each.uuid === gpu.uuid)?.score;
  return (
    <div className="jp-Gipfel-gpu" data-gpu={gpu.uuid} ref={node}>
      <div className="jp-Gipfel-gpuHead">
        <h4>{name}</h4>
        <span className="jp-Gipfel-small">
          {gpu.name.replace(/^NVIDIA /, '')}
          {typeof score === 'number' && ` · ${trans.__('score %1', Math.round(score))}`}
        </span>
        {!selection.all && (
          <button
            className="jp-Gipfel-icon"
            title={trans.__('Hide %1', name)}
            aria-label={trans.__('Hide %1', name)}
            onClick={() => {
              selection.toggleGpu(gpu.uuid);
            }}
          >
            {props.closeIcon}
          </button>
        )}
      </div>
      {inView && props.plot(gpu, name)}
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
      // Margins of page and panel, so that the plot is drawn before it is scrolled into view.
      { rootMargin: MARGIN, scrollMargin: MARGIN } as IntersectionObserverInit
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
