/** The commands of this extension. */
export const CommandIDs = {
  /** Show the panel. */
  openPanel: 'gipfel:open-panel',
  /** Show the job page, with a run and one of its launches if they are given. */
  openJob: 'gipfel:open-job',
  /** Show the job page with the state that JupyterLab's URL contains. */
  openJobFromUrl: 'gipfel:open-job-from-url',
  /** Show the content of the panel in the main area. */
  openWide: 'gipfel:open-wide',
  /** Show one metric of all GPUs in the main area. */
  openGauge: 'gipfel:open-gauge',
  /** Explain the panel step by step. */
  takeTour: 'gipfel:take-tour',
  /** Open the documentation in a new tab of the browser. */
  openDocumentation: 'gipfel:open-documentation',
  /** Record a simulated source in addition to the real ones. */
  startSimulation: 'gipfel:start-simulated-source',
  /** Stop the simulated source. */
  stopSimulation: 'gipfel:stop-simulated-source',
  /** Show the plots of a run by its name. */
  showRun: 'gipfel:show-run',
  /** Open the table of runs in the main area. */
  openRuns: 'gipfel:open-runs',
  /** Copy a shipped notebook, and open the copy. */
  openNotebook: 'gipfel:open-notebook',
  /** Open a new notebook with a launch cell. */
  newLaunch: 'gipfel:new-launch',
  /** Open the running service of a blueprint, or show the form to start it. */
  openService: 'gipfel:open-service',
  /** Run the current notebook as a batch job. */
  runAsBatchJob: 'gipfel:run-as-batch-job',
  /** Scan the file that is selected in the file browser. */
  scan: 'gipfel:scan',
  /** Save what was installed in this container as a directory from which an equal image can be built. */
  saveEnvironment: 'gipfel:save-environment'
} as const;

/** Argument schema of a command without arguments. */
export const NO_ARGUMENTS = {
  args: { type: 'object', properties: {}, additionalProperties: false }
} as const;
