import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ISection } from '../tokens';

interface ITabsProps {
  readonly sections: readonly ISection[];
  readonly selected: ISection;
  /** False while the panel or the page is hidden. */
  readonly visible: boolean;
  readonly onSelect: (section: ISection) => void;
  /** Called when a section becomes visible or not; by default, the section is told. */
  readonly onVisible?: (section: ISection, visible: boolean) => void;
  readonly trans: TranslationBundle;
  /** Description of the list for screen readers; by default that of the panel. */
  readonly label?: string;
  /** Prefix of the IDs in the page; by default that of the panel. */
  readonly prefix?: string;
}

/** Sections, such as those of the panel, one of them shown at a time: arrow keys, Home and End select a tab. */
export function Tabs(props: ITabsProps): React.JSX.Element {
  const { sections, selected, visible, onSelect, trans, prefix = 'gipfel' } = props;
  const list = React.useRef<HTMLDivElement>(null);
  const onKeyDown = (event: React.KeyboardEvent): void => {
    const next = neighbour(event.key, sections.indexOf(selected), sections.length);
    const section = next === null ? undefined : sections[next];
    if (section) {
      event.preventDefault();
      // JupyterLab has shortcuts for some of these keys.
      event.stopPropagation();
      onSelect(section);
      list.current?.querySelector<HTMLElement>(`#${tabId(prefix, section)}`)?.focus();
    }
  };
  return (
    <>
      <div
        ref={list}
        className="jp-Gipfel-tabs"
        role="tablist"
        aria-label={props.label ?? trans.__('Sections of the Gipfel panel')}
        onKeyDown={onKeyDown}
      >
        {sections.map(section => (
          <Tab
            key={section.id}
            section={section}
            selected={section === selected}
            prefix={prefix}
            onSelect={onSelect}
          />
        ))}
      </div>
      {sections.map(section => (
        <TabPanel
          key={section.id}
          section={section}
          selected={section === selected}
          prefix={prefix}
          onVisible={props.onVisible}
          visible={visible && (section === selected || section.Badge !== undefined)}
        />
      ))}
    </>
  );
}

function Tab(props: {
  section: ISection;
  selected: boolean;
  prefix: string;
  onSelect: (section: ISection) => void;
}): React.JSX.Element {
  const { section, selected, prefix, onSelect } = props;
  const { Badge } = section;
  return (
    <button
      type="button"
      role="tab"
      id={tabId(prefix, section)}
      aria-selected={selected}
      aria-controls={panelId(prefix, section)}
      tabIndex={selected ? 0 : -1}
      onClick={() => {
        onSelect(section);
      }}
    >
      {section.title}
      {Badge && <Badge />}
    </button>
  );
}

function tellSection(section: ISection, visible: boolean): void {
  section.setVisible?.(visible);
}

/** The content of a section; empty while another tab is selected. */
function TabPanel(props: {
  section: ISection;
  selected: boolean;
  prefix: string;
  visible: boolean;
  onVisible: ITabsProps['onVisible'];
}): React.JSX.Element {
  const { section, selected, prefix, visible } = props;
  const { Summary, Body } = section;
  const onVisible = React.useRef(props.onVisible ?? tellSection);
  React.useEffect(() => {
    onVisible.current(section, visible);
  }, [section, visible]);
  React.useEffect(() => {
    const report = onVisible.current;
    return (): void => {
      report(section, false);
    };
  }, [section]);
  return (
    <div
      role="tabpanel"
      id={panelId(prefix, section)}
      className="jp-Gipfel-section"
      data-section={section.id}
      aria-labelledby={tabId(prefix, section)}
      hidden={!selected}
    >
      <h2 className="jp-Gipfel-hidden">{section.title}</h2>
      {selected && Summary && (
        <div className="jp-Gipfel-summary">
          <Summary />
        </div>
      )}
      {selected && <Body />}
    </div>
  );
}

function tabId(prefix: string, section: ISection): string {
  return `${prefix}-tab-${section.id}`;
}

function panelId(prefix: string, section: ISection): string {
  return `${prefix}-section-${section.id}`;
}

/** Return the position that a key selects, from the one that is selected now; null for other keys. */
export function neighbour(key: string, now: number, count: number): number | null {
  switch (key) {
    case 'ArrowRight':
      return (now + 1) % count;
    case 'ArrowLeft':
      return (now + count - 1) % count;
    case 'Home':
      return 0;
    case 'End':
      return count - 1;
    default:
      return null;
  }
}
