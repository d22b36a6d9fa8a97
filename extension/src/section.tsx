import * as React from 'react';

/** One part of the panel; each is made in a file of its own and listed in `index.ts`. */
export interface ISection {
  /** Names it in the page, such as `saturation`. */
  readonly id: string;
  /** The heading, translated. */
  readonly title: string;
  /** Whether it begins closed. */
  readonly folded?: boolean;
  /** A few words beside the heading, also while it is closed; a `role="status"` where they change. */
  readonly Summary?: React.ComponentType;
  /** What is below the heading; mounted only while the section is open. */
  readonly Body: React.ComponentType;
  /** Told whether anybody looks: open, the panel shown, the page in front. Rest while nobody does. */
  setVisible?(visible: boolean): void;
}

/** A section with its heading, which opens and closes it. */
export function Section(props: { section: ISection; visible: boolean }): React.JSX.Element {
  const { section, visible } = props;
  const { Summary, Body } = section;
  const [open, setOpen] = React.useState(section.folded !== true);
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
        // The event also comes up from details inside the section.
        if (event.target === event.currentTarget) {
          setOpen(event.currentTarget.open);
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
