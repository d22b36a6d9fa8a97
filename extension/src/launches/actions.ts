/** Actions of the section that need other parts of JupyterLab. */
export interface ILaunchActions {
  /** Open the executed notebook of a launch. */
  readonly openNotebook: (id: string) => void;
  /** Open a new notebook with a launch cell. */
  readonly newLaunch: () => void;
}
