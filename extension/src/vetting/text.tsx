import { EditorState, Prec, RangeSet, StateEffect, StateField, type Text } from '@codemirror/state';
import { Decoration, EditorView, WidgetType, type DecorationSet } from '@codemirror/view';
import { CodeEditor, type IEditorServices } from '@jupyterlab/codeeditor';
import * as React from 'react';

/** What is wrong at a line, which counts from 1; 0 is no line. */
export interface IMark {
  readonly line: number;
  readonly text: string;
  readonly error: boolean;
}

interface IProps {
  readonly services: IEditorServices;
  readonly text: string;
  /** Null while nobody knows yet: those that were known stay where they were. */
  readonly marks: readonly IMark[] | null;
  readonly label: string;
  /** The element that says in words what the text means. */
  readonly describedBy: string;
  readonly onChange: (text: string) => void;
}

/** JupyterLab's own editor for a text in YAML, with what is wrong below the line that it is about. */
export function YamlText(props: IProps): React.JSX.Element {
  const { services, text, marks, label, describedBy } = props;
  const host = React.useRef<HTMLDivElement>(null);
  const made = React.useRef<CodeEditor.IEditor | null>(null);
  const latest = React.useRef(props);
  React.useEffect(() => {
    latest.current = props;
  });
  React.useEffect(() => {
    if (!host.current) {
      return;
    }
    const model = new CodeEditor.Model({ mimeType: 'text/x-yaml' });
    model.sharedModel.setSource(latest.current.text);
    const editor = services.factoryService.newInlineEditor({
      host: host.current,
      model,
      config: { lineNumbers: true, lineWrap: true },
      extensions: [marked, attributes(label, describedBy), EditorState.tabSize.of(2)]
    });
    // Tab leaves the editor, as it leaves any other field of the panel.
    viewOf(editor)?.setTabFocusMode(true);
    model.sharedModel.changed.connect(() => {
      const source = model.sharedModel.getSource();
      if (source !== latest.current.text) {
        latest.current.onChange(source);
      }
    });
    made.current = editor;
    return (): void => {
      made.current = null;
      editor.dispose();
      model.dispose();
    };
  }, [services, label, describedBy]);
  React.useEffect(() => {
    const shared = made.current?.model.sharedModel;
    if (shared && shared.getSource() !== text) {
      shared.setSource(text);
    }
  }, [text]);
  React.useEffect(() => {
    if (marks && made.current) {
      viewOf(made.current)?.dispatch({ effects: setMarks.of(marks) });
    }
  }, [marks]);
  return <div ref={host} className="jp-Gipfel-vetting-text" />;
}

/** CodeMirror's view; the interface of editors does not name it. */
function viewOf(editor: CodeEditor.IEditor): EditorView | null {
  const { editor: view } = editor as { editor?: unknown };
  return view instanceof EditorView ? view : null;
}

const setMarks = StateEffect.define<readonly IMark[]>();

const marked = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update: (before, transaction) => {
    const set = transaction.effects.filter(each => each.is(setMarks)).at(-1);
    return set ? decorated(transaction.state.doc, set.value) : before.map(transaction.changes);
  },
  provide: field => EditorView.decorations.from(field)
});

function attributes(label: string, describedBy: string): ReturnType<typeof Prec.highest> {
  return Prec.highest(
    EditorView.contentAttributes.of(view => ({
      'aria-label': label,
      'aria-describedby': describedBy,
      'aria-invalid': String(view.state.field(marked).size > 0)
    }))
  );
}

function decorated(text: Text, marks: readonly IMark[]): DecorationSet {
  const ranges = marks
    .filter(each => each.line > 0)
    .flatMap(each => {
      const line = text.line(Math.min(each.line, text.lines));
      return [
        Decoration.line({ class: 'jp-Gipfel-vetting-marked' }).range(line.from),
        Decoration.widget({ widget: new Message(each), block: true, side: 1 }).range(line.to)
      ];
    });
  return RangeSet.of(ranges, true);
}

/** A sentence below its line; who hears the page has it from the element that describes the editor. */
class Message extends WidgetType {
  constructor(private readonly mark: IMark) {
    super();
  }

  override eq(other: Message): boolean {
    return other.mark.text === this.mark.text && other.mark.error === this.mark.error;
  }

  toDOM(): HTMLElement {
    const element = document.createElement('div');
    element.className = 'jp-Gipfel-vetting-message';
    element.setAttribute('aria-hidden', 'true');
    element.textContent = `${this.mark.error ? '✗' : '▲'} ${this.mark.text}`;
    return element;
  }
}
