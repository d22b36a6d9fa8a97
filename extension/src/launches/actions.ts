/** Actions of the section that need other parts of JupyterLab. */
export interface ILaunchActions {
  /** Open the executed notebook of a launch. */
  readonly openNotebook: (id: string) => void;
  /** Open the job page with a launch and the run folder of its samples; undefined if a site has disabled the page. */
  readonly openJob?: ((id: string, run: string) => void) | undefined;
  /** Open a new notebook with a launch cell. */
  readonly newLaunch: () => void;
}
