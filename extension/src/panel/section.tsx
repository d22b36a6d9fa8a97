import * as React from 'react';

import type { ISection } from '../tokens';

/** A section; its heading opens and closes it. */
export function Section(props: {
  section: ISection;
  visible: boolean;
  open: boolean;
  onToggle: (open: boolean) => void;
}): React.JSX.Element {
  const { section, visible, open, onToggle } = props;
  const { Summary, Body } = section;
  React.useEffect(() => {
    section.setVisible?.(visible && open);
  }, [section, visible, open]);
  React.useEffect(
    () => (): void => {
      section.setVisible?.(false);
    },
    [section]
  );
  return (
    <details
      className="jp-Gipfel-section"
      data-section={section.id}
      open={open}
      onToggle={event => {
        // The event also bubbles up from details inside the section.
        if (event.target === event.currentTarget) {
          onToggle(event.currentTarget.open);
        }
      }}
    >
      <summary>
        <h2>{section.title}</h2>
        {Summary && <Summary />}
      </summary>
      {open && <Body />}
    </details>
  );
}
