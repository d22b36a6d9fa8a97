/** What the section can do beyond its own list. */
export interface ILaunchActions {
  /** Open the executed notebook of a launch. */
  readonly openNotebook: (id: string) => void;
  /** Open a new notebook with a launch cell. */
  readonly newLaunch: () => void;
}
