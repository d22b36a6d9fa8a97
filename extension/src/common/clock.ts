/** The reader's clock, which panel, widgets and report share: see the file that it comes from. */
export {
  aheadMs,
  clockMoment,
  clockRange,
  clockTime,
  onReadersClock,
  readersFigure,
  readersLayout,
  readersTimes,
  utcOf,
  wallText,
  zoneName
} from '../../gipfel_extension/telemetry/figures/clock.js';
