import { EditorState, Prec, RangeSet, StateEffect, StateField, type Text } from '@codemirror/state';
import { Decoration, EditorView, WidgetType, type DecorationSet } from '@codemirror/view';
import { CodeEditor, type IEditorServices } from '@jupyterlab/codeeditor';
import * as React from 'react';

/** A problem at a line, counted from 1; 0 for no line. */
export interface ILineProblem {
  readonly line: number;
  readonly text: string;
  readonly error: boolean;
}

interface IProps {
  readonly services: IEditorServices;
  readonly text: string;
  /** Null while the text is being checked; the previous problems stay in place. */
  readonly problems: readonly ILineProblem[] | null;
  readonly label: string;
  /** ID of the element that lists the checks and problems which the server found in the text. */
  readonly describedBy: string;
  readonly onChange: (text: string) => void;
}

/** JupyterLab's editor for YAML, with each problem below its line. */
export function YamlText(props: IProps): React.JSX.Element {
  const { services, text, problems, label, describedBy } = props;
  const host = React.useRef<HTMLDivElement>(null);
  const editorRef = React.useRef<CodeEditor.IEditor | null>(null);
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
      extensions: [problemDecorations, attributes(label, describedBy), EditorState.tabSize.of(2)]
    });
    // The Tab key leaves the editor, as in other fields of the panel.
    codeMirrorView(editor)?.setTabFocusMode(true);
    model.sharedModel.changed.connect(() => {
      const source = model.sharedModel.getSource();
      if (source !== latest.current.text) {
        latest.current.onChange(source);
      }
    });
    editorRef.current = editor;
    return (): void => {
      editorRef.current = null;
      editor.dispose();
      model.dispose();
    };
  }, [services, label, describedBy]);
  React.useEffect(() => {
    const shared = editorRef.current?.model.sharedModel;
    if (shared && shared.getSource() !== text) {
      shared.setSource(text);
    }
  }, [text]);
  React.useEffect(() => {
    if (problems && editorRef.current) {
      codeMirrorView(editorRef.current)?.dispatch({ effects: setProblems.of(problems) });
    }
  }, [problems]);
  return <div ref={host} className="jp-Gipfel-vetting-text" />;
}

/** Return CodeMirror's view, which the interface of editors does not expose. */
function codeMirrorView(editor: CodeEditor.IEditor): EditorView | null {
  const { editor: view } = editor as { editor?: unknown };
  return view instanceof EditorView ? view : null;
}

const setProblems = StateEffect.define<readonly ILineProblem[]>();

const problemDecorations = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update: (before, transaction) => {
    const set = transaction.effects.filter(each => each.is(setProblems)).at(-1);
    return set ? decorationsOf(transaction.state.doc, set.value) : before.map(transaction.changes);
  },
  provide: field => EditorView.decorations.from(field)
});

function attributes(label: string, describedBy: string): ReturnType<typeof Prec.highest> {
  return Prec.highest(
    EditorView.contentAttributes.of(view => ({
      'aria-label': label,
      'aria-describedby': describedBy,
      'aria-invalid': String(view.state.field(problemDecorations).size > 0)
    }))
  );
}

function decorationsOf(text: Text, problems: readonly ILineProblem[]): DecorationSet {
  const ranges = problems
    .filter(each => each.line > 0)
    .flatMap(each => {
      const line = text.line(Math.min(each.line, text.lines));
      return [
        Decoration.line({ class: 'jp-Gipfel-vetting-marked' }).range(line.from),
        Decoration.widget({ widget: new ProblemWidget(each), block: true, side: 1 }).range(line.to)
      ];
    });
  return RangeSet.of(ranges, true);
}

/** A problem below its line; screen readers read it from the element that describes the editor. */
class ProblemWidget extends WidgetType {
  constructor(private readonly problem: ILineProblem) {
    super();
  }

  override eq(other: ProblemWidget): boolean {
    return other.problem.text === this.problem.text && other.problem.error === this.problem.error;
  }

  toDOM(): HTMLElement {
    const element = document.createElement('div');
    element.className = 'jp-Gipfel-vetting-message';
    element.setAttribute('aria-hidden', 'true');
    element.textContent = `${this.problem.error ? '✗' : '▲'} ${this.problem.text}`;
    return element;
  }
}
